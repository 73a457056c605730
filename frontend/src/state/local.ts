/** What belongs to this browser and not to an address: theme, sizes, colours that were chosen. */
import { useSyncExternalStore } from "react";

/** Is called with the names of what is kept anew. */
type Watcher = (names: readonly string[]) => void;

const PREFIX = "assay.";
const watchers = new Set<Watcher>();
const values = new Map<string, unknown>();

/** Return what was kept under a name; a browser that keeps nothing has the default. */
export function kept<T>(name: string, otherwise: T): T {
  if (values.has(name)) return values.get(name) as T;
  let found = otherwise;
  try {
    const text = localStorage.getItem(PREFIX + name);
    if (text !== null) found = JSON.parse(text) as T;
  } catch {
    // Storage is switched off, or holds something else: the default will do.
  }
  values.set(name, found);
  return found;
}

/** Return all that is kept under names with a prefix, by the rest of the name. */
export function keptUnder<T>(prefix: string): Map<string, T> {
  const names = new Set([...values.keys()]);
  try {
    for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX)) names.add(key.slice(PREFIX.length));
  } catch {
    // Storage is switched off.
  }
  const found = new Map<string, T>();
  for (const name of names) {
    const value = name.startsWith(prefix) ? kept<T | null>(name, null) : null;
    if (value !== null) found.set(name.slice(prefix.length), value);
  }
  return found;
}

export function keep(name: string, value: unknown): void {
  keepAll(new Map([[name, value]]));
}

/** Keep values by their names. */
export function keepAll(fresh: ReadonlyMap<string, unknown>): void {
  for (const [name, value] of fresh) {
    values.set(name, value);
    try {
      localStorage.setItem(PREFIX + name, JSON.stringify(value));
    } catch {
      // As long as the page is open it is remembered all the same.
    }
  }
  tell([...fresh.keys()]);
}

/** Call a function when something is kept anew, by this page or another one of the browser. */
export function watchKept(watcher: Watcher): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

function tell(names: readonly string[]): void {
  for (const watcher of [...watchers]) watcher(names);
}

/** Follow what other pages of this browser keep. */
export function followOtherPages(): void {
  window.addEventListener("storage", ({ key }) => {
    if (!key?.startsWith(PREFIX)) return;
    values.delete(key.slice(PREFIX.length));
    tell([key.slice(PREFIX.length)]);
  });
}

export function useKept<T>(name: string, otherwise: T): [T, (value: T) => void] {
  const value = useSyncExternalStore(watchKept, () => kept(name, otherwise));
  return [value, (fresh) => keep(name, fresh)];
}

export type Theme = "system" | "light" | "dark";

export function applyTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
