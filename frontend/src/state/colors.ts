/**
 * Colours of runs, from twelve that colour-blind people tell apart, then in dashes.
 *
 * A run gets its colour when it is first drawn, in order of selection, and has it for good. Each is kept under a name
 * of its own, so that two pages of a browser do not undo what the other keeps.
 */
import { useEffect, useMemo, useSyncExternalStore } from "react";
import { keep, keepAll, keptUnder, watchKept } from "./local";

interface Stroke {
  light: string;
  dark: string;
}

// Even steps of hue with unlike lightness, checked against white and the dark page: at least 3 to 1.
const STROKES: readonly Stroke[] = [
  { light: "#0a6cd6", dark: "#4da3ff" },
  { light: "#c2410c", dark: "#ff8a4c" },
  { light: "#0f7b4f", dark: "#3fc98b" },
  { light: "#8b2fb8", dark: "#cf86f5" },
  { light: "#a16207", dark: "#e3b341" },
  { light: "#0e7490", dark: "#4cc9de" },
  { light: "#be185d", dark: "#ff7ab6" },
  { light: "#4d5566", dark: "#aab4c3" },
  { light: "#4f46e5", dark: "#9a94ff" },
  { light: "#5a7d0a", dark: "#a8cf45" },
  { light: "#7c2d12", dark: "#d99a7c" },
  { light: "#dc2626", dark: "#ff6b6b" },
];

const DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3]];

export const COLOR_COUNT = STROKES.length;

export interface Style {
  color: string;
  dash: readonly number[];
  slot: number;
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

/** Return the colours of runs that are drawn together; one that has none gets what is used least, here and at all. */
export function chosenSlots(ids: readonly string[], known: Slots): Map<string, number> {
  const uses = new Array<number>(STROKES.length).fill(0);
  const usesHere = [...uses];
  for (const slot of known.values()) uses[slot % STROKES.length]! += 1;
  const found = new Map<string, number>();
  for (const id of ids) {
    const slot = known.get(id);
    if (slot === undefined) continue;
    found.set(id, slot % STROKES.length);
    usesHere[slot % STROKES.length]! += 1;
  }
  for (const id of ids) {
    if (found.has(id)) continue;
    let best = 0;
    for (let slot = 1; slot < STROKES.length; slot++) {
      const more = usesHere[slot]! - usesHere[best]! || uses[slot]! - uses[best]!;
      if (more < 0) best = slot;
    }
    found.set(id, best);
    usesHere[best]! += 1;
    uses[best]! += 1;
  }
  return found;
}

/** Return a colour by its number; that of what has none yet without one. */
export function colorAt(slot: number | undefined, isDark: boolean): string {
  const stroke = slot === undefined ? NONE : STROKES[slot % STROKES.length]!;
  return isDark ? stroke.dark : stroke.light;
}

/** Return how each of these is drawn, and keep the colours for good; of two that share one, the second is dashed. */
export function useStyles(ids: readonly string[], isDark: boolean): Map<string, Style> {
  const known = useSlots();
  useEffect(() => {
    slots = null; // what another page has kept at this moment counts
    const before = keptSlots();
    const fresh = [...chosenSlots(ids, before)].filter(([id]) => !before.has(id));
    if (fresh.length) keepAll(new Map(fresh.map(([id, slot]) => [PREFIX + id, slot])));
  }, [ids]);
  return useMemo(() => {
    const taken = new Map<number, number>();
    const found = new Map<string, Style>();
    const chosen = chosenSlots(ids, known);
    for (const id of ids) {
      const slot = chosen.get(id)!;
      const before = taken.get(slot) ?? 0;
      taken.set(slot, before + 1);
      found.set(id, { color: colorAt(slot, isDark), dash: DASHES[before % DASHES.length]!, slot });
    }
    return found;
  }, [ids, known, isDark]);
}

/** Give a run another colour, for good. */
export function chooseColor(id: string, slot: number): void {
  keep(PREFIX + id, slot);
}
