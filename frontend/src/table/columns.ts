/** Columns of the table: what each is called, how wide it is, how a run looks in it. */
import type { RunLine } from "../api/client";
import type { ColumnSpec } from "../state/address";

/** What every run has, whatever was logged. */
export const FACTS = ["status", "tag", "best", "duration", "age", "created", "step", "attempts", "labels", "reason", "id"] as const;
export type Fact = (typeof FACTS)[number];

const WIDTHS: Record<Fact, number> = {
  status: 90,
  tag: 112,
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
const LEAST: Partial<Record<Fact, number>> = { tag: 72, best: 122, age: 84 };
const LEAST_OWN = 96;

/** Room for what opens a group, in the first column. */
const OPENER = 44;

/** Return the widths of columns within `room` pixels: a little narrower if that makes all of them fit. */
export function fittedWidths(columns: readonly ColumnSpec[], room: number, isGrouped = false): number[] {
  const widths = columns.map((column, at) => widthOf(column) + (isGrouped && at === 0 && column.width === undefined ? OPENER : 0));
  const spare = columns.map((column, at) => {
    if (column.width !== undefined) return 0;
    const least = isFact(column.name) ? (LEAST[column.name] ?? widths[at]!) : LEAST_OWN;
    return Math.max(0, widths[at]! - least);
  });
  const excess = widths.reduce((sum, width) => sum + width, 0) - room;
  const total = spare.reduce((sum, each) => sum + each, 0);
  if (excess <= 0 || excess > total) return widths;
  return widths.map((width, at) => width - Math.ceil((spare[at]! * excess) / total));
}

/** Return a name as a head shows it: the last part of a key, the whole of a metric. */
export function shortName(name: string): string {
  return name.includes("/") ? name : (name.split(".").at(-1) ?? name);
}

/** Say whether a column is of numbers: its head stands at the right, above them. */
export function isRight(column: ColumnSpec, kind: string | undefined): boolean {
  return isFact(column.name) ? RIGHT.has(column.name) : kind === "metric" || kind === "number";
}

/** Return the columns of a project nobody has chosen any for. */
export function defaultColumns(names: { varying: string[]; best: Record<string, string>; metrics: string[] } | undefined): ColumnSpec[] {
  const results = !names || Object.keys(names.best).length ? ["best"] : likelyResults(names.metrics);
  const found = ["status", "tag", ...results, ...(names?.varying ?? []).slice(0, 2), "duration", "age"];
  return found.map((name) => ({ name }));
}

/** Return what most people look at first, of runs that do not say what is best. */
function likelyResults(metrics: readonly string[]): string[] {
  const rank = (name: string): number => {
    const split = /^(valid|val|test|eval|dev)\b/.test(name) ? 0 : name.startsWith("train") ? 2 : 4;
    return split + (/(acc|f1|auc|score|bleu|iou|map)/i.test(name) ? 0 : name.includes("loss") ? 1 : 8);
  };
  return [...metrics].filter((name) => rank(name) < 4).sort((a, b) => rank(a) - rank(b)).slice(0, 2);
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
