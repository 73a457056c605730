/** Axes of the parameter view: where each value of a column lies, from 0 to 1. */
import { number } from "../../state/format";

export type Value = number | string | boolean | null;

export interface Tick {
  at: number;
  text: string;
}

export interface Scale {
  name: string;
  kind: "number" | "log" | "category";
  ticks: readonly Tick[];
  /** How many values have no tick for want of room. */
  unnamed: number;
  /** Return the place of a value from 0 to 1, null where it has none. */
  place: (value: Value) => number | null;
}

/** Numbers that span more than this factor are laid out by their logarithm. */
const LOG_SPAN = 50;
const TICKS = 5;
const MOST_NAMED = 12;
/** So few numbers, this far apart, are the ticks of their axis themselves. */
const MOST_OWN = 7;
const LEAST_APART = 0.06;

export function scaleOf(name: string, values: readonly Value[]): Scale {
  const known = values.filter((value) => value !== null && value !== "");
  const numbers = known.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  if (known.every((value) => typeof value === "number")) return numberScale(name, numbers);
  return categoryScale(name, [...new Set(known.map(String))]);
}

function numberScale(name: string, numbers: readonly number[]): Scale {
  // No spread into Math.min: a column may have 20,000 values.
  let low = Infinity;
  let high = -Infinity;
  for (const value of numbers) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (!numbers.length) return { name, kind: "number", ticks: [], unnamed: 0, place: () => null };
  if (low === high) {
    return { name, kind: "number", ticks: [{ at: 0.5, text: number(low) }], unnamed: 0, place: (value) => (typeof value === "number" ? 0.5 : null) };
  }
  const isLog = low > 0 && high / low > LOG_SPAN;
  const forward = isLog ? Math.log10 : (value: number) => value;
  const back = isLog ? (value: number) => 10 ** value : (value: number) => value;
  const begin = forward(low);
  const span = forward(high) - begin;
  const place = (value: Value): number | null =>
    typeof value === "number" && Number.isFinite(value) ? (forward(value) - begin) / span : null;
  const own = ownTicks(numbers, place);
  if (own) return { name, kind: isLog ? "log" : "number", ticks: own, unnamed: 0, place };
  const ticks = Array.from({ length: TICKS }, (_, index) => {
    const at = index / (TICKS - 1);
    return { at, text: number(Number(back(begin + at * span).toPrecision(3))) };
  });
  return { name, kind: isLog ? "log" : "number", ticks, unnamed: 0, place };
}

/** Return a tick for each value of a column that has few; null where they are many, or would lie on each other. */
function ownTicks(numbers: readonly number[], place: (value: number) => number | null): Tick[] | null {
  const values = new Set<number>();
  for (const value of numbers) {
    values.add(value);
    if (values.size > MOST_OWN) return null;
  }
  const ticks = [...values].sort((a, b) => a - b).map((value) => ({ at: place(value) ?? 0, text: number(value) }));
  return ticks.every((tick, at) => at === 0 || tick.at - ticks[at - 1]!.at >= LEAST_APART) ? ticks : null;
}

function categoryScale(name: string, found: readonly string[]): Scale {
  const texts = [...found].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const at = new Map(texts.map((text, index) => [text, (index + 0.5) / texts.length]));
  const step = Math.ceil(texts.length / MOST_NAMED);
  const ticks = texts.filter((_, index) => index % step === 0).map((text) => ({ at: at.get(text)!, text }));
  return { name, kind: "category", ticks, unnamed: texts.length - ticks.length, place: (value) => (value === null ? null : (at.get(String(value)) ?? null)) };
}

/** A part of an axis that rows have to lie in, from 0 to 1. */
export interface Brush {
  name: string;
  low: number;
  high: number;
}

export function parseBrush(text: string): Brush | null {
  const found = /^(.+)@([\d.]+):([\d.]+)$/s.exec(text);
  if (!found) return null;
  const [low, high] = [Number(found[2]), Number(found[3])];
  return low < high ? { name: found[1]!, low, high } : null;
}

export function showBrush(brush: Brush): string {
  return `${brush.name}@${short(brush.low)}:${short(brush.high)}`;
}

function short(value: number): string {
  return String(Math.round(Math.max(0, Math.min(1, value)) * 1000) / 1000);
}

/** Return the rows that lie in all brushes. */
export function brushed(places: ReadonlyMap<string, readonly (number | null)[]>, brushes: readonly Brush[], rows: number): number[] {
  const active = brushes.flatMap((brush) => {
    const column = places.get(brush.name);
    return column ? [{ brush, column }] : [];
  });
  const found: number[] = [];
  for (let row = 0; row < rows; row++) {
    const isIn = active.every(({ brush, column }) => {
      const at = column[row] ?? null;
      return at !== null && at >= brush.low && at <= brush.high;
    });
    if (isIn) found.push(row);
  }
  return found;
}

/** Return which of `count` equal shares of an axis a place lies in; from the top where small values are good. */
export function shadeOf(at: number | null, count: number, isLow: boolean): number {
  return at === null ? 0 : Math.min(count - 1, Math.floor((isLow ? 1 - at : at) * count));
}
