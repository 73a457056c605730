/** Columns of the table: what each is called, how wide it is, how a run looks in it. */
import type { RunLine } from "../api/client";
import type { ColumnSpec } from "../state/address";

/** What every run has, whatever was logged. */
export const FACTS = ["status", "tag", "best", "duration", "age", "created", "step", "attempts", "labels", "reason", "id"] as const;
export type Fact = (typeof FACTS)[number];

const WIDTHS: Record<Fact, number> = {
  status: 90,
  tag: 208,
  best: 136,
  duration: 92,
  age: 92,
  created: 148,
  step: 80,
  attempts: 76,
  labels: 120,
  reason: 200,
  id: 88,
};
const RIGHT = new Set<string>(["duration", "age", "step", "attempts"]);

export const DEFAULT_SORT = "-created";

export function isFact(name: string): name is Fact {
  return (FACTS as readonly string[]).includes(name);
}

export function widthOf(column: ColumnSpec): number {
  return column.width ?? (isFact(column.name) ? WIDTHS[column.name] : Math.min(160, Math.max(64, 24 + 7.2 * shortName(column.name).length)));
}

/** How narrow a column may become where all of them then fit, in pixels: no number and no status is cut. */
const LEAST: Partial<Record<Fact, number>> = { tag: 110, best: 122, age: 84 };
const LEAST_OWN = 96;

/** Room for what opens a group, in the first column. */
const OPENER = 44;
/** Room for a mean and its deviation, which are never cut. */
const SPREAD = 132;

/** Return the widths of columns within `room` pixels: narrower as far as that makes more of them fit. */
export function fittedWidths(columns: readonly ColumnSpec[], room: number, isGrouped = false): number[] {
  const hasSpread = (column: ColumnSpec) => isGrouped && column.width === undefined && column.name.includes("/");
  const widths = columns.map(
    (column, at) => Math.max(widthOf(column), hasSpread(column) ? SPREAD : 0) + (isGrouped && at === 0 && column.width === undefined ? OPENER : 0),
  );
  const spare = columns.map((column, at) => {
    if (column.width !== undefined || hasSpread(column)) return 0;
    const least = isFact(column.name) ? (LEAST[column.name] ?? widths[at]!) : LEAST_OWN;
    return Math.max(0, widths[at]! - least);
  });
  const excess = widths.reduce((sum, width) => sum + width, 0) - room;
  const total = spare.reduce((sum, each) => sum + each, 0);
  if (excess <= 0 || total === 0) return widths;
  return widths.map((width, at) => width - Math.ceil(spare[at]! * Math.min(1, excess / total)));
}

/** Return a name as a head shows it: the last part of a key, the whole of a metric; runs are named by more than the tag. */
export function shortName(name: string): string {
  if (name === "tag") return "name";
  return name.includes("/") ? name : (name.split(".").at(-1) ?? name);
}

/** Say whether a column is of numbers: its head stands at the right, above them. */
export function isRight(column: ColumnSpec, kind: string | undefined): boolean {
  return isFact(column.name) ? RIGHT.has(column.name) : kind === "metric" || kind === "number";
}

/** Return the columns of a list that nobody has chosen any for: what every run has, around what the server chose. */
export function defaultColumns(chosen: readonly string[], isGrouped: boolean): ColumnSpec[] {
  const names = isGrouped ? ["tag", ...chosen] : ["status", "tag", ...chosen, "duration", "age"];
  return names.map((name) => ({ name }));
}

export const STATUS_WORDS: Record<string, string> = {
  running: "live",
  finished: "finished",
  failed: "failed",
  stopped: "stopped",
  killed: "killed",
  unknown: "unknown",
  damaged: "damaged",
  lost: "lost",
};

/** Return the cause of an end in a word or two: the type of an error, what is not finite. */
export function cause(run: Pick<RunLine, "status" | "reason">): string {
  if (run.status === "finished" || run.status === "running" || !run.reason) return "";
  if (/\b(nan|not finite|non-finite|inf)\b/i.test(run.reason)) return "nan";
  return /^([A-Za-z_.]*?)([A-Z][A-Za-z]*(?:Error|Exception|Interrupt))\b/.exec(run.reason)?.[2] ?? "";
}
