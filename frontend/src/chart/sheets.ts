/**
 * Curves that are on the page. A sheet holds those of one look at the x axis; what panels need in the same moment is
 * fetched in one request, and an open run sends only what it has logged since.
 */
import { ApiError, bytes } from "../api/client";
import { extended, unpack, type Curve } from "../api/curves";
import type { Axis, Zoom } from "../state/address";

export interface Look {
  project: string;
  x: string;
  low: number | null;
  high: number | null;
  points: number;
  logx: boolean;
  branches: boolean;
  smooth: number;
  /** Whether means are drawn, as those of groups and of small curves are. */
  means: boolean;
}

const MOST_METRICS = 40;
/** So many panels fit into a window. */
const MOST_AHEAD = 12;
const MOST_CHARACTERS = 30_000;
const LIVE_MS = 300;
/** Ranges of x that are told apart: one for each pixel of a panel in a wide window. */
const POINTS = 384;

export function keyOf(look: Look): string {
  return JSON.stringify(look);
}

/** Return the look at curves of an axis. */
export function lookOf(project: string, { x, logX, smooth }: Axis, zoom: Zoom | null, means = false): Look {
  return { project, x, low: zoom?.low ?? null, high: zoom?.high ?? null, points: POINTS, logx: logX, branches: true, smooth, means };
}

let ahead: Sheet | null | undefined;

/** Ask for curves before the panels that draw them are made, not behind it: once, since later the panels are there. */
export function askForCurves(look: Look, runs: readonly string[], metrics: readonly string[]): void {
  if (ahead !== undefined || metrics.length > MOST_AHEAD) return;
  ahead = new Sheet(look);
  for (const metric of metrics) ahead.need(runs, metric);
}

/** Return the sheet of a look: that of which curves were asked for ahead, or a new one. */
export function sheetOf(look: Look): Sheet {
  const found = ahead && keyOf(ahead.look) === keyOf(look) ? ahead : new Sheet(look);
  ahead = null;
  return found;
}

function pairOf(run: string, metric: string): string {
  return `${run}\u0000${metric}`;
}

export class Sheet {
  /** Grows whenever there is something new to draw. */
  version = 0;
  error: ApiError | null = null;
  readonly look: Look;
  private readonly curves = new Map<string, Curve[]>();
  private readonly wanted = new Map<string, Set<string>>();
  private readonly asked = new Set<string>();
  private readonly watchers = new Set<() => void>();
  private readonly stale = new Set<string>();
  private isPlanned = false;
  private isUpdating = false;
  private lastUpdate = 0;
  private mounted = new Map<string, number>();
  private abort = new AbortController();
  private requests = 0;
  /** The number of the request whose answer each curve holds. */
  private readonly answers = new Map<string, number>();

  /** Runs that were open when they were last read. */
  private readonly openRuns = new Set<string>();
  /** The last request that was made before the stream of changes was open. */
  private doubtful = 0;

  constructor(look: Look) {
    this.look = look;
  }

  watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  snapshot = (): number => this.version;

  /** Return the branches of a curve, the current one first; undefined while it is not known. */
  curve(run: string, metric: string): Curve[] | undefined {
    return this.curves.get(pairOf(run, metric));
  }

  /** Say that a panel shows a metric: open runs are kept up to date for it. */
  mount(metric: string): () => void {
    this.mounted.set(metric, (this.mounted.get(metric) ?? 0) + 1);
    return () => {
      const left = (this.mounted.get(metric) ?? 1) - 1;
      if (left) this.mounted.set(metric, left);
      else this.mounted.delete(metric);
    };
  }

  /** See to it that these curves come. */
  need(runs: readonly string[], metric: string): void {
    for (const run of runs) {
      const pair = pairOf(run, metric);
      if (this.asked.has(pair)) continue;
      this.asked.add(pair);
      const metrics = this.wanted.get(run) ?? new Set<string>();
      metrics.add(metric);
      this.wanted.set(run, metrics);
    }
    if (this.wanted.size && !this.isPlanned) {
      this.isPlanned = true;
      // All panels of a frame are asked for together.
      queueMicrotask(() => void this.fetchWanted());
    }
  }

  /** Open runs have logged more. */
  grown(runs: readonly string[]): void {
    for (const run of runs) this.stale.add(run);
    this.plan();
  }

  /** The stream of changes was opened: what open runs had logged by then is asked for again. */
  streamOpened(): void {
    this.doubtful = this.requests;
    this.grown([...this.openRuns]);
  }

  /** Runs have changed in another way: what is known of them is fetched again. */
  forget(runs: readonly string[]): void {
    for (const run of runs) {
      for (const pair of [...this.asked]) {
        if (!pair.startsWith(`${run}\u0000`)) continue;
        this.asked.delete(pair);
      }
    }
    this.changed();
  }

  /** Go on after a `close`: React opens things twice while it is developed with. */
  open(): void {
    if (this.abort.signal.aborted) this.abort = new AbortController();
  }

  close(): void {
    this.abort.abort();
    this.asked.clear();
    this.wanted.clear();
  }

  /** Nothing is known for sure any more: the server was away. */
  forgetAll(): void {
    this.asked.clear();
    this.changed();
  }

  /** Whether the answer to a request is the newest of a curve: a later one may have overtaken it. */
  private isNewest(pair: string, request: number): boolean {
    if (request < (this.answers.get(pair) ?? 0)) return false;
    this.answers.set(pair, request);
    return true;
  }

  /** Remember which runs of an answer are open: only those have a revision. */
  private noteOpen(revisions: Record<string, number>, request: number): void {
    for (const [run, revision] of Object.entries(revisions)) {
      if (!revision) {
        this.openRuns.delete(run);
        continue;
      }
      this.openRuns.add(run);
      if (request <= this.doubtful) this.grown([run]);
    }
  }

  private plan(): void {
    if (this.isUpdating || this.stale.size === 0) return;
    this.isUpdating = true;
    const wait = Math.max(0, this.lastUpdate + LIVE_MS - performance.now());
    setTimeout(() => {
      void this.update().finally(() => {
        this.lastUpdate = performance.now();
        this.isUpdating = false;
        this.plan();
      });
    }, wait);
  }

  private async update(): Promise<void> {
    const runs = [...this.stale];
    this.stale.clear();
    const metrics = [...this.mounted.keys()];
    const since: string[] = [];
    const widths = new Map<string, number>();
    const whole: [string, string][] = [];
    const begins = new Map<string, number>();
    for (const run of runs) {
      let begin = Infinity;
      for (const metric of metrics) {
        const pair = pairOf(run, metric);
        if (!this.asked.has(pair)) continue;
        const curve = this.curves.get(pair)?.[0];
        if (!curve || this.isOutgrown(curve)) {
          whole.push([run, metric]);
          continue;
        }
        if (curve.width) widths.set(metric, curve.width);
        begin = Math.min(begin, curve.raw ? curve.last : (curve.xs.at(-1) ?? 0));
      }
      if (Number.isFinite(begin)) {
        begins.set(run, begin);
        since.push(`${run}:${begin}`);
      }
    }
    const request = ++this.requests;
    try {
      if (since.length) {
        const parts = [`runs=${[...begins.keys()].join(",")}`, this.query(metrics), `since=${since.join(",")}`];
        for (const metric of metrics) parts.push(`width=${widths.get(metric) ?? 0}`);
        const answer = unpack(await bytes(`api/curves?${parts.join("&")}`, this.abort.signal));
        for (const fresh of answer.curves) {
          const pair = pairOf(fresh.run, fresh.metric);
          const known = this.curves.get(pair);
          if (!known || !this.isNewest(pair, request)) continue;
          const at = known.findIndex((each) => each.branch === fresh.branch);
          if (at < 0 || known[at]!.first > fresh.first) whole.push([fresh.run, fresh.metric]);
          else known[at] = extended(known[at]!, fresh);
        }
        this.noteOpen(answer.revisions, request);
      }
    } catch {
      // The next event asks again.
    }
    for (const [run, metric] of whole) {
      this.asked.delete(pairOf(run, metric));
      this.need([run], metric);
    }
    this.changed();
  }

  /** Whether a curve has more points by now than are drawn: then it is fetched again in wider ranges. */
  private isOutgrown(curve: Curve): boolean {
    return curve.xs.length > 2 * this.look.points + 64;
  }

  private async fetchWanted(): Promise<void> {
    this.isPlanned = false;
    const byMetrics = new Map<string, { runs: string[]; metrics: string[] }>();
    for (const [run, metrics] of this.wanted) {
      const list = [...metrics];
      const key = list.join("\u0000");
      const group = byMetrics.get(key) ?? { runs: [], metrics: list };
      group.runs.push(run);
      byMetrics.set(key, group);
    }
    this.wanted.clear();
    const requests: Promise<void>[] = [];
    for (const { runs, metrics } of byMetrics.values()) {
      for (let i = 0; i < metrics.length; i += MOST_METRICS) {
        for (const part of sliced(runs)) requests.push(this.fetch(part, metrics.slice(i, i + MOST_METRICS)));
      }
    }
    await Promise.all(requests);
  }

  private async fetch(runs: string[], metrics: string[]): Promise<void> {
    const request = ++this.requests;
    try {
      const answer = unpack(await bytes(`api/curves?runs=${runs.join(",")}&${this.query(metrics)}`, this.abort.signal));
      const found = new Map<string, Curve[]>();
      for (const run of runs) for (const metric of metrics) found.set(pairOf(run, metric), []);
      for (const curve of answer.curves) {
        const branches = found.get(pairOf(curve.run, curve.metric));
        if (curve.branch === 0) branches?.unshift(curve);
        else branches?.push(curve);
      }
      for (const [pair, branches] of found) if (this.isNewest(pair, request)) this.curves.set(pair, branches);
      this.noteOpen(answer.revisions, request);
      this.error = null;
    } catch (error) {
      if (this.abort.signal.aborted) return;
      for (const run of runs) for (const metric of metrics) this.asked.delete(pairOf(run, metric));
      this.error = error instanceof ApiError ? error : new ApiError(0, { what: String(error), where: "", fix: "" });
    }
    this.changed();
  }

  private query(metrics: readonly string[]): string {
    const { x, low, high, points, logx, branches, smooth, means, project } = this.look;
    const parts = metrics.map((metric) => `metric=${encodeURIComponent(metric)}`);
    parts.push(`points=${points}`);
    if (project) parts.push(`project=${project}`);
    if (x) parts.push(`x=${encodeURIComponent(x)}`);
    if (low !== null) parts.push(`low=${low}`);
    if (high !== null) parts.push(`high=${high}`);
    if (logx) parts.push("log=true");
    if (branches) parts.push("branches=true");
    if (smooth) parts.push(`smooth=${smooth}`);
    if (means) parts.push("means=true");
    return parts.join("&");
  }

  private changed(): void {
    this.version += 1;
    for (const watcher of [...this.watchers]) watcher();
  }
}

function* sliced(runs: string[]): Iterable<string[]> {
  const most = Math.floor(MOST_CHARACTERS / 9);
  for (let i = 0; i < runs.length; i += most) yield runs.slice(i, i + most);
}
