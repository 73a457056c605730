/** Rows of the table, fetched by the page: what is seen first, then the others while nothing else is to be done. */
import { useEffect, useMemo, useRef, useSyncExternalStore } from "react";
import { api, ApiError, data, type GroupLine, type RunLine, type RunsPage } from "../api/client";
import { useLive } from "./site";

export interface Question {
  project: string;
  where: string;
  sort: readonly string[];
  /** Null for those that the server chooses. */
  columns: readonly string[] | null;
  group: readonly string[];
  archived: boolean;
  tests: boolean;
}

export const PAGE = 200;
const MOST_PREFETCHED = 20_000;
/** Pages of one request that nobody waits for: up to 500 runs the server looks up, for more it walks through all. */
const PAGES_AHEAD = 2;
const PATIENCE_MS = 100;

/** One row: a run, also one inside of a group that is open, or a group. */
export type Line = { kind: "run"; run: RunLine; isInside?: boolean } | { kind: "group"; group: GroupLine };

/** Return what names a group: in the table, and for its colour. */
export function groupId(group: GroupLine): string {
  return group.key.join("·");
}

export function idsOf(line: Line): readonly string[] {
  return line.kind === "run" ? [line.run.id] : line.group.ids;
}

export class Rows {
  /** Grows whenever there is something new to show. */
  snapshotVersion = 0;
  total: number | null = null;
  /** The version of the list of runs that the last rows are of. */
  version = -1;
  runs = 0;
  columns: RunsPage["columns"] = [];
  reading: [number, number] | null = null;
  error: ApiError | null = null;
  fetchedAt = 0;
  readonly question: Question;
  private readonly pages = new Map<number, Line[]>();
  private readonly asked = new Set<number>();
  private readonly watchers = new Set<() => void>();
  private abort = new AbortController();
  private seen: [number, number] = [0, 0];
  private prefetching = false;
  private requests = 0;
  /** The number of the newest request that was answered, and of that whose answer each page holds. */
  private answered = 0;
  private readonly answers = new Map<number, number>();
  private readonly patches = new Set<(run: RunLine) => RunLine>();

  constructor(question: Question) {
    this.question = question;
    this.ensure(0, 0);
  }

  watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  snapshot = (): number => this.snapshotVersion;

  get isReady(): boolean {
    return this.total !== null;
  }

  /** Return a row, undefined while it has not come. */
  line(index: number): Line | undefined {
    const line = this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
    if (line?.kind !== "run" || !this.patches.size) return line;
    return { ...line, run: [...this.patches].reduce((run, change) => change(run), line.run) };
  }

  /** Return the place of a run among the rows that have come, -1 when it is not among them. */
  indexOf(id: string): number {
    for (const [page, lines] of this.pages) {
      const at = lines.findIndex((line) => line.kind === "run" && line.run.id === id);
      if (at >= 0) return page * PAGE + at;
    }
    return -1;
  }

  /** See to it that the rows from `first` to `last` come. */
  ensure(first: number, last: number): void {
    this.seen = [first, last];
    for (let page = Math.floor(first / PAGE); page <= Math.floor(last / PAGE); page++) {
      if (!this.asked.has(page)) void this.fetch(page);
    }
  }

  /** Fetch again what is on the screen; the rest when it is scrolled to. */
  async refresh(): Promise<void> {
    const first = Math.floor(this.seen[0] / PAGE);
    const last = Math.floor(this.seen[1] / PAGE);
    for (const page of [...this.asked]) if (page < first || page > last) this.asked.delete(page);
    const fetches: Promise<void>[] = [];
    for (let page = first; page <= last; page++) fetches.push(this.fetch(page));
    await Promise.all(fetches);
  }

  /** Change rows at once, before the server has said that it did the same; return what ends that. */
  patch(change: (run: RunLine) => RunLine): () => void {
    // Answers that come meanwhile may have been made before the change.
    this.patches.add(change);
    this.changed();
    return () => {
      this.patches.delete(change);
      this.changed();
    };
  }

  close(): void {
    this.abort.abort();
  }

  private async fetch(page: number, pages = 1): Promise<void> {
    const { project, where, sort, columns, group, archived, tests } = this.question;
    // What the server has chosen once stays, also for rows that come later.
    const names = columns ?? (this.isReady ? this.columns.map((column) => column.name) : null);
    for (let each = page; each < page + pages; each++) this.asked.add(each);
    const request = ++this.requests;
    try {
      const found = await data(
        api.GET("/api/runs", {
          params: {
            query: {
              project,
              where,
              sort: [...sort],
              column: [...(names ?? [])],
              choose: names === null,
              group: [...group],
              archived,
              tests,
              offset: page * PAGE,
              limit: pages * PAGE,
            },
          },
          signal: this.abort.signal,
        }),
      );
      const lines: Line[] = group.length
        ? found.groups.map((each) => ({ kind: "group", group: each }))
        : found.rows.map((run) => ({ kind: "run", run }));
      // An answer may be overtaken by that to a later request: then it is old.
      for (let each = 0; each < pages; each++) {
        if (request < (this.answers.get(page + each) ?? 0)) continue;
        this.answers.set(page + each, request);
        this.pages.set(page + each, lines.slice(each * PAGE, (each + 1) * PAGE));
      }
      if (request > this.answered) {
        this.answered = request;
        this.total = found.total;
        this.version = found.version;
        this.runs = found.runs;
        this.columns = found.columns;
        this.reading = found.reading as [number, number] | null;
        this.error = null;
        this.fetchedAt = Date.now() / 1000;
      }
      this.prefetch();
    } catch (error) {
      if (request < this.answered) return;
      for (let each = page; each < page + pages; each++) this.asked.delete(each);
      if (this.abort.signal.aborted) return;
      this.error = error instanceof ApiError ? error : new ApiError(0, { what: String(error), where: "", fix: "" });
    }
    this.changed();
  }

  /** Fetch the rest, some pages at a time, from what is seen on: whoever scrolls finds the rows there. */
  private prefetch(): void {
    // While the server reads runs into a new index, each answer is soon old.
    if (this.prefetching || this.total === null || this.reading) return;
    this.prefetching = true;
    idle(() => {
      this.prefetching = false;
      const last = Math.ceil(Math.min(this.total ?? 0, MOST_PREFETCHED) / PAGE);
      for (let step = 0; step < last; step++) {
        const page = (Math.floor(this.seen[1] / PAGE) + step) % last;
        if (this.asked.has(page) || this.abort.signal.aborted) continue;
        let pages = 1;
        while (pages < PAGES_AHEAD && page + pages < last && !this.asked.has(page + pages)) pages++;
        void this.fetch(page, pages);
        return;
      }
    });
  }

  private changed(): void {
    this.snapshotVersion += 1;
    for (const watcher of [...this.watchers]) watcher();
  }
}

function idle(work: () => void): void {
  if ("requestIdleCallback" in window) requestIdleCallback(work, { timeout: PATIENCE_MS });
  else setTimeout(work, PATIENCE_MS);
}

/** Return the rows of a question. Until the first of a new one have come, those of the last one stay. */
export function useRows(question: Question): { rows: Rows; isOld: boolean; error: ApiError | null } {
  const key = JSON.stringify(question);
  // eslint-disable-next-line react-hooks/exhaustive-deps -- the key says all that the question says
  const fresh = useMemo(() => new Rows(question), [key]);
  const shown = useRef(fresh);
  useSyncExternalStore(fresh.watch, fresh.snapshot);
  useSyncExternalStore(shown.current.watch, shown.current.snapshot);
  useLive(({ version }) => {
    // Also those on their way: their answer may have been made before this change.
    if (version !== undefined) for (const each of new Set([shown.current, fresh])) if (each.version !== version) void each.refresh();
  });
  if (fresh !== shown.current && (fresh.isReady || !shown.current.isReady)) {
    shown.current.close();
    shown.current = fresh;
  }
  useEffect(
    () => () => {
      if (fresh !== shown.current) fresh.close();
    },
    [fresh],
  );
  return { rows: shown.current, isOld: shown.current !== fresh && !fresh.error, error: fresh.error };
}
