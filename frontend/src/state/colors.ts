/**
 * Colours of runs, from eight that colour-blind people tell apart, then in dashes.
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
