/** The address holds what is shown: a copied link shows the same to somebody else. */

import { labelOf } from "../chart/ticks";

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

/** The part of an address that says how curves are drawn. */
export interface ChartSearch {
  /** The filter of panels. */
  p?: string;
  smooth?: number;
  x?: string;
  logx?: boolean;
  z?: string;
  /** Settings of panels: a name, then `@` and `log`, `cut` or a range of y with commas between. */
  o?: string[];
  /** The panel that is enlarged. */
  big?: string;
  /** The key of the config by which lines are coloured. */
  by?: string;
}

/** Return what an address says of curves. */
function chartSearch(raw: RawSearch): ChartSearch {
  const smooth = Number(one(raw.smooth) || "0");
  return {
    p: one(raw.p),
    smooth: Number.isFinite(smooth) ? Math.min(0.999, Math.max(0, smooth)) : 0,
    x: one(raw.x),
    logx: one(raw.logx) === "1",
    z: parseZoom(one(raw.z)) ? one(raw.z) : "",
    o: many(raw.o).filter((text) => parsePanel(text) !== null),
    big: one(raw.big),
    by: one(raw.by),
  };
}

/** How one panel is drawn, where it is not as all are. */
export interface PanelOptions {
  logY?: boolean;
  /** Whether the axis leaves out the outermost values; how many is said. */
  cut?: boolean;
  /** Ends of the y axis that were chosen by hand. */
  low?: number;
  high?: number;
}

/** Return the panel and its settings that a part of an address names; null for none. */
export function parsePanel(text: string): [string, PanelOptions] | null {
  const found = /^(.+)@([^@]+)$/s.exec(text);
  if (!found) return null;
  const options: PanelOptions = {};
  for (const part of found[2]!.split(",")) {
    const [low, high] = part.split(":").map((each) => (each === "" ? NaN : Number(each)));
    if (part === "log") options.logY = true;
    else if (part === "cut") options.cut = true;
    else if (high !== undefined && !(low! >= high)) {
      if (Number.isFinite(low)) options.low = low!;
      if (Number.isFinite(high)) options.high = high;
    }
  }
  return Object.keys(options).length ? [found[1]!, options] : null;
}

/** Return the settings of a panel as an address has them, "" for none. */
export function showPanel(key: string, { logY, cut, low, high }: PanelOptions): string {
  const range = low === undefined && high === undefined ? "" : `${spelled(low)}:${spelled(high)}`;
  const parts = [logY ? "log" : "", cut ? "cut" : "", range].filter(Boolean);
  return parts.length ? `${key}@${parts.join(",")}` : "";
}

/** Return a number in the shorter of its two spellings. */
function spelled(value: number | undefined): string {
  if (value === undefined) return "";
  const power = value.toExponential().replace("e+", "e");
  return power.length < String(value).length ? power : String(value);
}

/** What the workspace shows. Every part is optional in the address. */
export interface WorkspaceSearch extends ChartSearch {
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
  /** The side that is hidden. */
  hide?: "runs" | "panels";
  /** The named view that this began as. */
  v?: string;
  archived?: boolean;
  tests?: boolean;
}

export function workspaceSearch(raw: RawSearch): WorkspaceSearch {
  const hide = one(raw.hide);
  return clean({
    project: one(raw.project),
    w: one(raw.w),
    s: many(raw.s),
    c: many(raw.c),
    g: many(raw.g),
    sel: one(raw.sel),
    ...chartSearch(raw),
    hide: hide === "runs" || hide === "panels" ? hide : undefined,
    v: one(raw.v),
    archived: one(raw.archived) === "1",
    tests: one(raw.tests) === "1",
  });
}

export interface RunSearch extends ChartSearch {
  project?: string;
  tab?: string;
  /** What is open in the tab: a file, an artifact. */
  at?: string;
  /** The step whose artifacts are shown; without one the newest are. */
  step?: number;
}

export function runSearch(raw: RawSearch): RunSearch {
  const step = one(raw.step);
  return clean({
    project: one(raw.project),
    tab: one(raw.tab),
    at: one(raw.at),
    step: /^\d{1,15}$/.test(step) ? Number(step) : undefined,
    ...chartSearch(raw),
  });
}

export interface CompareSearch extends ChartSearch {
  project?: string;
  runs?: string;
  /** The run that the others are measured against. */
  base?: string;
}

export function compareSearch(raw: RawSearch): CompareSearch {
  return clean({ project: one(raw.project), ...chartSearch(raw), runs: one(raw.runs), base: one(raw.base) });
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
  if (!zoom) return "";
  // As many digits as tell points of the zoomed range apart.
  const step = (zoom.high - zoom.low) / 10;
  return `${labelOf(zoom.low, step)}:${labelOf(zoom.high, step)}`;
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
