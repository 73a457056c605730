/** Colours of runs: each run has its own for good, from twelve that colour-blind people tell apart, then in dashes. */
import { kept, keep } from "./local";

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

/** Return the number of the colour of a run or a group. */
export function slotOf(id: string): number {
  const chosen = kept<Record<string, number>>("colors", {})[id];
  if (chosen !== undefined) return chosen % STROKES.length;
  // FNV-1a: the ids are random already, names of groups are not.
  let hash = 0x811c9dc5;
  for (let i = 0; i < id.length; i++) hash = Math.imul(hash ^ id.charCodeAt(i), 0x01000193) >>> 0;
  return ((hash ^ (hash >>> 15)) >>> 0) % STROKES.length;
}

export function colorAt(slot: number, isDark: boolean): string {
  const stroke = STROKES[slot % STROKES.length]!;
  return isDark ? stroke.dark : stroke.light;
}

/** Return how each of these is drawn. A colour is for good; of two that share one, the second is dashed. */
export function stylesOf(ids: readonly string[], isDark: boolean): Map<string, Style> {
  const taken = new Map<number, number>();
  const found = new Map<string, Style>();
  for (const id of ids) {
    const slot = slotOf(id);
    const before = taken.get(slot) ?? 0;
    taken.set(slot, before + 1);
    found.set(id, { color: colorAt(slot, isDark), dash: DASHES[before % DASHES.length]!, slot });
  }
  return found;
}

/** Give a run another colour, for good. */
export function chooseColor(id: string, slot: number): void {
  keep("colors", { ...kept<Record<string, number>>("colors", {}), [id]: slot });
}
