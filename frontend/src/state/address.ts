/** The address holds what is shown: a copied link shows the same to somebody else. */

export type RawSearch = Record<string, string | string[] | undefined>;

/** Return the parts of a query, those that come several times as lists. */
export function parseSearch(text: string): RawSearch {
  const found: RawSearch = {};
  for (const [key, value] of new URLSearchParams(text)) {
    const before = found[key];
    if (before === undefined) found[key] = value;
    else found[key] = Array.isArray(before) ? [...before, value] : [before, value];
  }
  return found;
}

/** Return the query of an address; what is empty is left out. */
export function stringifySearch(search: Record<string, unknown>): string {
  const found = new URLSearchParams();
  for (const [key, value] of Object.entries(search)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each === undefined || each === null || each === "" || each === false) continue;
      found.append(key, each === true ? "1" : String(each as string | number));
    }
  }
  // Slashes, colons and commas may stand in a query, and names of metrics are full of them.
  const text = found.toString().replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%2C", ",");
  return text ? `?${text}` : "";
}

function one(value: string | string[] | undefined): string {
  return (Array.isArray(value) ? value[0] : value) ?? "";
}

function many(value: string | string[] | undefined): string[] {
  return value === undefined ? [] : Array.isArray(value) ? value : [value];
}

export interface Zoom {
  low: number;
  high: number;
}

export interface Axis {
  /** "" for the step; "time", "elapsed", "epoch" or a metric. */
  x: string;
  logX: boolean;
  /** The weight of what came before in the moving average of all points. */
  smooth: number;
}

/** Return the x axis of curves that an address names. */
export function axisOf({ x, logx, smooth }: { x?: string | undefined; logx?: boolean | undefined; smooth?: number | undefined }): Axis {
  return { x: x ?? "", logX: logx ?? false, smooth: smooth ?? 0 };
}

/** What the workspace shows. Every part is optional in the address. */
export interface WorkspaceSearch {
  project?: string;
  /** The filter. */
  w?: string;
  /** Columns to sort by, with - for the largest first. */
  s?: string[];
  /** Columns: a name, then `@` and a width, then `!` when it is pinned. */
  c?: string[];
  /** What rows are grouped by. */
  g?: string[];
  /** Selected runs by id with commas between; `*` is all, `-` none; nothing is the newest. */
  sel?: string;
  /** The filter of panels. */
  p?: string;
  smooth?: number;
  x?: string;
  logx?: boolean;
  z?: string;
  /** The side that is hidden. */
  hide?: "runs" | "panels";
  /** The named view that this began as. */
  v?: string;
  archived?: boolean;
  tests?: boolean;
}

export function workspaceSearch(raw: RawSearch): WorkspaceSearch {
  const smooth = Number(one(raw.smooth) || "0");
  const hide = one(raw.hide);
  return clean({
    project: one(raw.project),
    w: one(raw.w),
    s: many(raw.s),
    c: many(raw.c),
    g: many(raw.g),
    sel: one(raw.sel),
    p: one(raw.p),
    smooth: Number.isFinite(smooth) ? Math.min(0.999, Math.max(0, smooth)) : 0,
    x: one(raw.x),
    logx: one(raw.logx) === "1",
    z: parseZoom(one(raw.z)) ? one(raw.z) : "",
    hide: hide === "runs" || hide === "panels" ? hide : undefined,
    v: one(raw.v),
    archived: one(raw.archived) === "1",
    tests: one(raw.tests) === "1",
  });
}

export interface RunSearch {
  project?: string;
  tab?: string;
  /** What is open in the tab: a file, an artifact. */
  at?: string;
  /** The step whose artifacts are shown; without one the newest are. */
  step?: number;
  p?: string;
  smooth?: number;
  x?: string;
  logx?: boolean;
  z?: string;
}

export function runSearch(raw: RawSearch): RunSearch {
  const { project, p, smooth, x, logx, z } = workspaceSearch(raw);
  const step = one(raw.step);
  return clean({ project, tab: one(raw.tab), at: one(raw.at), step: /^\d{1,15}$/.test(step) ? Number(step) : undefined, p, smooth, x, logx, z });
}

export interface CompareSearch extends Omit<RunSearch, "tab" | "at" | "step"> {
  runs?: string;
  /** The run that the others are measured against. */
  base?: string;
}

export function compareSearch(raw: RawSearch): CompareSearch {
  const { project, p, smooth, x, logx, z } = workspaceSearch(raw);
  return clean({ project, p, smooth, x, logx, z, runs: one(raw.runs), base: one(raw.base) });
}

/** What the parameter view shows. */
export interface ParametersSearch {
  project?: string;
  /** The filter. */
  w?: string;
  /** The metric. */
  m?: string;
  /** Axes; nothing is the keys that the metric depends on most. */
  k?: string[];
  /** The key of the scatter plot. */
  x?: string;
  /** Parts of axes: `NAME@LOW:HIGH`, from 0 to 1. */
  b?: string[];
}

export function parametersSearch(raw: RawSearch): ParametersSearch {
  return clean({
    project: one(raw.project),
    w: one(raw.w),
    m: one(raw.m),
    k: many(raw.k),
    x: one(raw.x),
    b: many(raw.b),
  });
}

export interface TableSearch {
  project?: string;
  /** Runs that a new table is made of. */
  from?: string;
}

export function tableSearch(raw: RawSearch): TableSearch {
  return clean({ project: one(raw.project), from: one(raw.from) });
}

export interface ProjectSearch {
  project?: string;
}

export function projectSearch(raw: RawSearch): ProjectSearch {
  return clean({ project: one(raw.project) });
}

export interface QueueSearch {
  project?: string;
  /** The job whose output is shown. */
  job?: string;
}

export function queueSearch(raw: RawSearch): QueueSearch {
  const job = one(raw.job);
  return clean({ project: one(raw.project), job: job && /^\d{1,15}$/.test(job) ? job : undefined });
}

export function parseZoom(text: string | undefined): Zoom | null {
  if (!text) return null;
  const [low, high] = text.split(":").map(Number);
  if (low === undefined || high === undefined) return null;
  return Number.isFinite(low) && Number.isFinite(high) && low < high ? { low, high } : null;
}

export function showZoom(zoom: Zoom | null): string {
  return zoom ? `${shortest(zoom.low, zoom)}:${shortest(zoom.high, zoom)}` : "";
}

/** Return as many digits as tell points of the zoomed range apart. */
function shortest(value: number, zoom: Zoom): string {
  const digits = Math.max(0, Math.ceil(4 - Math.log10(zoom.high - zoom.low)));
  return String(Number(value.toFixed(Math.min(12, digits))));
}

/** One column of the table as the address has it. */
export interface ColumnSpec {
  name: string;
  width?: number;
  pinned?: boolean;
}

export function parseColumn(text: string): ColumnSpec {
  const found = /^(.*?)(?:@(\d{2,4}))?(!)?$/s.exec(text);
  if (!found) return { name: text };
  return { name: found[1] ?? text, ...(found[2] && { width: Number(found[2]) }), ...(found[3] && { pinned: true }) };
}

export function showColumn(column: ColumnSpec): string {
  return `${column.name}${column.width ? `@${Math.round(column.width)}` : ""}${column.pinned ? "!" : ""}`;
}

/** Return an object without what is empty: two addresses that mean the same are the same. */
function clean<T extends object>(search: T): T {
  const entries = Object.entries(search).filter(
    ([, value]) =>
      value !== undefined && value !== "" && value !== false && value !== 0 && !(Array.isArray(value) && !value.length),
  );
  return Object.fromEntries(entries) as T;
}
