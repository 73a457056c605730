/** What changes while the page is open: one stream of events, shared by everything on it. */
import { root } from "./client";

export interface LiveEvent {
  /** The first event of a stream: what happened before is known by `version` alone. */
  opened?: boolean;
  /** The version of the list of runs; -1: the stream was away, and nothing is known for sure. */
  version?: number;
  /** How many log calls of each open run there are by now. */
  rows?: Record<string, number>;
  /** How long the log, the output and the events of each open run are. */
  files?: Record<string, [number, number, number]>;
  statuses?: Record<string, string>;
  changed?: string[];
  gone?: string[];
  /** Tables that were changed, by name. */
  tables?: string[];
  inbox?: boolean;
  views?: boolean;
  /** Whether the jobs of the queue have changed. */
  queue?: boolean;
  /** How long the output of each running job is. */
  jobs?: Record<string, number>;
}

export type Connection = "connecting" | "open" | "lost";

type Listener = (event: LiveEvent) => void;

/** A stream that opens with its first listener and closes with its last. */
export class Live {
  connection: Connection = "connecting";
  /** Runs that are removed, also those that this page is about to remove: nobody asks the server for them. */
  readonly gone = new Set<string>();
  /** Of those, the runs of which the stream has not said so yet: an older change in it brings none back. */
  private readonly leaving = new Set<string>();
  private source: EventSource | null = null;
  private readonly listeners = new Set<Listener>();
  private readonly watchers = new Set<() => void>();
  private wasLost = false;
  readonly project: string;

  constructor(project: string) {
    this.project = project;
  }

  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    if (!this.source) this.open();
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) this.close();
    };
  }

  /** This page is about to remove runs. */
  leave(runs: readonly string[]): void {
    for (const run of runs) {
      this.gone.add(run);
      this.leaving.add(run);
    }
    this.noticed();
  }

  /** Runs were not removed after all, or are back. */
  stay(runs: readonly string[]): void {
    for (const run of runs) {
      this.gone.delete(run);
      this.leaving.delete(run);
    }
    this.noticed();
  }

  /** Call back when the connection is lost or comes back, and when runs are gone or back. */
  watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  private open(): void {
    const query = this.project ? `?project=${encodeURIComponent(this.project)}` : "";
    this.source = new EventSource(new URL(`api/live${query}`, root));
    this.source.onopen = () => {
      this.become("open");
    };
    this.source.onerror = () => {
      this.wasLost = true;
      this.become("lost");
      // A stream that was refused is not tried again by the browser.
      if (this.source?.readyState === EventSource.CLOSED) {
        this.source = null;
        setTimeout(() => {
          if (!this.source && this.listeners.size) this.open();
        }, 2000);
      }
    };
    this.source.onmessage = (message: MessageEvent<string>) => {
      const event = JSON.parse(message.data) as LiveEvent;
      // What happened while nobody listened is not known: everything is looked at again.
      const isBack = event.opened && this.wasLost;
      if (isBack) this.wasLost = false;
      this.tell(isBack ? { version: -1 } : event);
    };
  }

  private close(): void {
    this.source?.close();
    this.source = null;
    this.connection = "connecting";
  }

  private tell(event: LiveEvent): void {
    if (event.version === -1) this.stay([...this.gone]);
    if (event.changed) this.stay(event.changed.filter((run) => !this.leaving.has(run)));
    if (event.gone) {
      this.leave(event.gone);
      for (const run of event.gone) this.leaving.delete(run);
    }
    for (const listener of [...this.listeners]) listener(event);
  }

  private become(connection: Connection): void {
    if (this.connection === connection) return;
    this.connection = connection;
    this.noticed();
  }

  private noticed(): void {
    for (const watcher of [...this.watchers]) watcher();
  }
}
