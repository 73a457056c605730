/**
 * Colours of runs, from eight that colour-blind people tell apart, then in dashes.
 *
 * A run gets its colour by its name when it is first drawn, and has it for good. Each is kept under a name of its own,
 * so that two pages of a browser do not undo what the other keeps.
 */
import { useEffect, useMemo, useSyncExternalStore } from "react";
import { keep, keepAll, keptUnder, watchKept } from "./local";

interface Stroke {
  light: string;
  dark: string;
}

// The light ones are those of figures and reports (query/drawing.py). Seen without one kind of cones any two are 17 apart
// in CIE Lab, and each has a contrast of 3 to 1 with its page: docs/decisions/0052.
const STROKES: readonly Stroke[] = [
  { light: "#0067ad", dark: "#016dbd" },
  { light: "#b84a00", dark: "#d55e00" },
  { light: "#1d9353", dark: "#279a66" },
  { light: "#c977a5", dark: "#cc79a7" },
  { light: "#d28000", dark: "#eaa006" },
  { light: "#009aef", dark: "#57b4ea" },
  { light: "#6e2978", dark: "#924b8d" },
  { light: "#6b6b6b", dark: "#6b6b6b" },
];

/** Dashes of lines that share a colour, in the order of their use. */
export const DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

/** The last one, which is taken when no other is left. */
const GREY = STROKES.length - 1;

export const COLOR_COUNT = STROKES.length;

export interface Style {
  color: string;
  dash: readonly number[];
}

const PREFIX = "color.";
/** The colour of what was never drawn, and has none yet. */
const NONE: Stroke = { light: "#8a929c", dark: "#767e88" };

type Slots = ReadonlyMap<string, number>;

let slots: Slots | null = null;
watchKept((names) => {
  if (names.some((name) => name.startsWith(PREFIX))) slots = null;
});

/** Return the numbers of the colours that runs and groups have, by id. */
function keptSlots(): Slots {
  slots ??= keptUnder<number>(PREFIX);
  return slots;
}

export function useSlots(): Slots {
  return useSyncExternalStore(watchKept, keptSlots);
}

/** What is drawn: its name, and what its colour is kept under. */
export interface Named {
  id: string;
  label: string;
}

/** Return the number of the colour that a name has where nothing else has it: a hash, as figures take it. */
export function likedSlot(name: string): number {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(name)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash % GREY;
}

/**
 * Return colour and dash of what is drawn together, by number. What has no colour yet gets the one that its name likes,
 * or the next one that is used less, here or at all. Where nothing has one, figures have the same (`choose_strokes` of
 * query/drawing.py).
 */
export function chosenStrokes(runs: readonly Named[], known: Slots): Map<string, { slot: number; dash: number }> {
  const uses = new Array<number>(STROKES.length).fill(0);
  const usesAtAll = [...uses];
  for (const slot of known.values()) usesAtAll[slot % STROKES.length]! += 1;
  const found = new Map<string, { slot: number; dash: number }>();
  const take = (id: string, slot: number) => found.set(id, { slot, dash: uses[slot]!++ });
  const sorted = [...runs].sort((a, b) => (a.label < b.label ? -1 : 1));
  for (const { id } of sorted) if (known.has(id)) take(id, known.get(id)! % STROKES.length);
  for (const { id, label } of sorted) {
    if (found.has(id)) continue;
    const liked = likedSlot(label);
    let best = liked;
    for (let more = 1; more < STROKES.length; more++) {
      const slot = more < GREY ? (liked + more) % GREY : GREY;
      if ((uses[slot]! - uses[best]! || usesAtAll[slot]! - usesAtAll[best]!) < 0) best = slot;
    }
    usesAtAll[best]! += 1;
    take(id, best);
  }
  return found;
}

/** Return a colour by its number; that of what has none yet without one. */
export function colorAt(slot: number | undefined, isDark: boolean): string {
  const stroke = slot === undefined ? NONE : STROKES[slot % STROKES.length]!;
  return isDark ? stroke.dark : stroke.light;
}

/** Values by which lines are coloured, by id. */
export type Colored = Readonly<Record<string, string | number | null>>;

/** Return how each of these is drawn, and keep the colours for good; with values, by these. */
export function useStyles(runs: readonly Named[], isDark: boolean, values: Colored | null = null): Map<string, Style> {
  const known = useSlots();
  useEffect(() => {
    slots = null; // what another page has kept at this moment counts
    const before = keptSlots();
    const fresh = [...chosenStrokes(runs, before)].filter(([id]) => !before.has(id));
    if (fresh.length) keepAll(new Map(fresh.map(([id, { slot }]) => [PREFIX + id, slot])));
  }, [runs]);
  return useMemo(() => {
    if (values) return stylesByValue(runs, values, isDark);
    const look = ({ slot, dash }: { slot: number; dash: number }): Style => ({ color: colorAt(slot, isDark), dash: DASHES[dash % DASHES.length]! });
    return new Map([...chosenStrokes(runs, known)].map(([id, stroke]) => [id, look(stroke)]));
  }, [runs, known, isDark, values]);
}

// From the least number to the largest; each has a contrast of 3 to 1 with its page, and the colour-blind see an order.
const SCALE = {
  light: [[13, 8, 135], [156, 23, 158], [216, 87, 107], [222, 106, 30]],
  dark: [[122, 108, 255], [209, 79, 208], [240, 128, 78], [253, 197, 39]],
} as const;
/** Numbers that span more than this factor are told apart by their logarithm. */
const LOG_SPAN = 50;

/** Return colours by values: a scale for numbers, one colour for each of the others. */
export function stylesByValue(runs: readonly Named[], values: Colored, isDark: boolean): Map<string, Style> {
  const known = runs.map(({ id }) => values[id] ?? null).filter((value) => value !== null);
  const none: Style = { color: isDark ? NONE.dark : NONE.light, dash: [] };
  if (known.every((value) => typeof value === "number")) {
    const low = known.reduce((least, value) => Math.min(least, value), Infinity);
    const high = known.reduce((most, value) => Math.max(most, value), -Infinity);
    const along = low > 0 && high / low > LOG_SPAN ? Math.log : (value: number) => value;
    const span = along(high) - along(low);
    const color = (value: number) => onScale(span > 0 ? (along(value) - along(low)) / span : 0, isDark);
    return new Map(runs.map(({ id }) => [id, typeof values[id] === "number" ? { color: color(values[id]), dash: [] } : none]));
  }
  const names = [...new Set(known.map(String))].map((text) => ({ id: text, label: text }));
  const strokes = chosenStrokes(names, new Map());
  const style = (text: string): Style => ({ color: colorAt(strokes.get(text)!.slot, isDark), dash: DASHES[strokes.get(text)!.dash % DASHES.length]! });
  return new Map(runs.map(({ id }) => [id, values[id] === null || values[id] === undefined ? none : style(String(values[id]))]));
}

function onScale(share: number, isDark: boolean): string {
  const stops = isDark ? SCALE.dark : SCALE.light;
  const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const from = Math.min(stops.length - 2, Math.floor(at));
  const mixed = stops[from]!.map((value, channel) => Math.round(value + (stops[from + 1]![channel]! - value) * (at - from)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** Give a run another colour, for good. */
export function chooseColor(id: string, slot: number): void {
  keep(PREFIX + id, slot);
}
