/** Ticks of axes: round values, and labels with as many digits as their distance needs. */

export interface Ticks {
  values: number[];
  labels: string[];
}

export type AxisKind = "number" | "step" | "time" | "elapsed";

export interface AxisOptions {
  kind: AxisKind;
  isLog: boolean;
  /** Pixels of the axis. */
  room: number;
  /** Pixels of one tick, at least. */
  space: number;
  /** Pixels that a label takes along the axis. */
  measure: (label: string) => number;
}

/** Pixels between two labels. */
const GAP = 10;
/** Labels of so few characters stand as they are. */
const SHORT = 6;
const SHORT_COUNT = 4;
const UNITS: readonly [number, string][] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
const DAY = 86_400;
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200];

/** Return the ticks of an axis from `low` to `high`, as many as have room for their labels. */
export function ticksOf(low: number, high: number, options: AxisOptions): Ticks {
  const most = Math.max(1, Math.floor(options.room / options.space));
  let found: Ticks = { values: [], labels: [] };
  for (let count = most; count >= 1; count--) {
    found = makeTicks(low, high, count, options);
    if (fits(low, high, found, options)) return found;
  }
  return { values: found.values.slice(0, 1), labels: found.labels.slice(0, 1) };
}

function makeTicks(low: number, high: number, most: number, { kind, isLog }: AxisOptions): Ticks {
  if (isLog) return logTicks(low, high, most, kind === "step");
  if (kind === "time" || kind === "elapsed") return clockTicks(low, high, most, kind);
  const { values, step } = linearTicks(low, high, most, kind === "step" ? 1 : 0);
  return { values, labels: labelsOf(values, step, kind === "step") };
}

/** Return whether no label reaches into its neighbour. */
function fits(low: number, high: number, { values, labels }: Ticks, { isLog, room, measure }: AxisOptions): boolean {
  const along = isLog ? Math.log : (value: number) => value;
  // Halves: the distance may exceed the largest number.
  const span = along(high) / 2 - along(low) / 2;
  return values.every((value, at) => {
    if (at === 0) return true;
    const apart = (room * (along(value) / 2 - along(values[at - 1]!) / 2)) / span;
    return apart >= (measure(labels[at]!) + measure(labels[at - 1]!)) / 2 + GAP;
  });
}

/** Return at most about `most` multiples of 1, 2 or 5 times a power of ten, `least` apart or more. */
export function linearTicks(low: number, high: number, most: number, least = 0): { values: number[]; step: number } {
  // Divided first: the distance may exceed the largest number.
  const raw = Math.max(high / most - low / most, least);
  if (!(raw > 0) || !Number.isFinite(raw)) return { values: [low], step: Math.abs(low) };
  let power = Math.floor(Math.log10(raw) + 1e-9);
  let factor = [1, 2, 5, 10].find((each) => Number(`${each}e${power}`) >= raw * (1 - 1e-9)) ?? 10;
  if (factor === 10) [factor, power] = [1, power + 1];
  const step = Number(`${factor}e${power}`);
  const first = Math.ceil(low / step - 1e-6);
  const last = Math.floor(high / step + 1e-6);
  const values: number[] = [];
  for (let place = first; place <= last && values.length <= most + 1; place++) {
    // Read from its digits: a product of floats has others.
    const value = place === 0 ? 0 : Number(`${place * factor}e${power}`);
    if (value !== values.at(-1)) values.push(value);
    if (place + 1 === place) break;
  }
  return { values, step };
}

/** Return powers of ten, with 2 and 5 times these where they are few; multiples of a step within a power. */
function logTicks(low: number, high: number, most: number, isCount: boolean): Ticks {
  const first = Math.floor(Math.log10(low) + 1e-9);
  const last = Math.ceil(Math.log10(high) - 1e-9);
  const decades = Math.max(1, last - first);
  const every = Math.max(1, Math.ceil(decades / most));
  const factors = every === 1 && 3 * decades <= most ? [1, 2, 5] : [1];
  const values: number[] = [];
  for (let power = Math.ceil(first / every) * every; power <= last; power += every) {
    for (const factor of factors) {
      const value = Number(`${factor}e${power}`);
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) values.push(value);
    }
  }
  if (values.length < 2) {
    const { values: even, step } = linearTicks(low, high, most);
    return { values: even, labels: labelsOf(even, step, isCount) };
  }
  return { values, labels: labelsOf(values, Math.min(...values), isCount) };
}

/** Return ticks at round times: of the day where the reader is, or since a beginning. */
function clockTicks(low: number, high: number, most: number, kind: "time" | "elapsed"): Ticks {
  const raw = (high - low) / most;
  if (raw < 1) {
    const { values, step } = linearTicks(low, high, most, kind === "time" ? 0.001 : 0);
    const digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
    const labels = kind === "elapsed" ? labelsOf(values, step).map((label) => `${label} s`) : clockLabels(values, step, digits);
    return { values, labels };
  }
  const step = SECONDS.find((each) => each >= raw) ?? DAY * linearTicks(0, Math.max(1, (high - low) / DAY), most, 1).step;
  const offset = kind === "time" ? -60 * new Date(1000 * low).getTimezoneOffset() : 0;
  const values: number[] = [];
  for (let place = Math.ceil((low + offset) / step); place * step - offset <= high && values.length <= most + 1; place++) values.push(place * step - offset);
  return { values, labels: kind === "time" ? clockLabels(values, step, 0) : values.map((value) => spanLabel(value)) };
}

/** Return times of day, with the date below the first of each day; dates alone where the ticks are days. */
function clockLabels(values: readonly number[], step: number, digits: number): string[] {
  let before = "";
  return values.map((value) => {
    const date = new Date(1000 * value);
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    if (step >= DAY) return day;
    const seconds = step < 60 ? `:${(date.getSeconds() + date.getMilliseconds() / 1000).toFixed(digits).padStart(digits ? digits + 3 : 2, "0")}` : "";
    const time = `${two(date.getHours())}:${two(date.getMinutes())}${seconds}`;
    const isNew = day !== before;
    before = day;
    return isNew ? `${time}\n${day}` : time;
  });
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}

/** Return whole seconds as days, hours, minutes and seconds, without those that are none. */
function spanLabel(value: number): string {
  const rest = Math.round(Math.abs(value));
  const parts = [[Math.floor(rest / DAY), "d"], [Math.floor((rest % DAY) / 3600), "h"], [Math.floor((rest % 3600) / 60), "min"], [rest % 60, "s"]];
  const said = parts.filter(([amount]) => amount).map(([amount, unit]) => `${amount} ${unit}`).join(" ");
  return `${value < 0 ? "-" : ""}${said || "0 s"}`;
}

/** Return the shortest labels of values that lie `step` apart: no two are alike, none is off by a thousandth of it. */
export function labelsOf(values: readonly number[], step: number, isCount = false): string[] {
  const error = step / 1000;
  const write = (form: (value: number, error: number) => string) => values.map((value) => (Math.abs(value) <= error ? "0" : form(value, error)));
  const plainly = write(plain);
  if (longest(plainly) <= (isCount ? SHORT_COUNT : SHORT)) return plainly;
  const most = Math.max(...values.map(Math.abs));
  const [unit, sign] = UNITS.find(([size]) => most >= size) ?? [1, ""];
  const forms = [plainly, ...(isCount ? [write((value) => plain(value / unit, error / unit) + sign)] : []), write(scientific)];
  return forms.reduce((best, each) => (longest(each) < longest(best) ? each : best));
}

/** Return a value with the digits that tell it from one that lies `step` away. */
export function labelOf(value: number, step: number): string {
  return labelsOf([value], step)[0]!;
}

function longest(labels: readonly string[]): number {
  return Math.max(0, ...labels.map((label) => label.length));
}

function plain(value: number, error: number): string {
  for (let digits = 0; digits <= 100; digits++) {
    const text = value.toFixed(digits);
    if (text.includes("e")) break;
    if (Math.abs(Number(text) - value) <= error) return trimmed(text);
  }
  return scientific(value, error);
}

function scientific(value: number, error: number): string {
  let text = "";
  for (let digits = 0; digits <= 17; digits++) {
    text = value.toExponential(digits);
    if (Math.abs(Number(text) - value) <= error) break;
  }
  const [mantissa, power] = text.split("e");
  return Number(power) ? `${trimmed(mantissa!)}e${Number(power)}` : trimmed(mantissa!);
}

function trimmed(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
