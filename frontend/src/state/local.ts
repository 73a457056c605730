/** What belongs to this browser and not to an address: theme, sizes, colours that were chosen. */
import { useSyncExternalStore } from "react";

const PREFIX = "assay.";
const watchers = new Set<() => void>();
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

export function keep(name: string, value: unknown): void {
  values.set(name, value);
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // As long as the page is open it is remembered all the same.
  }
  for (const watcher of [...watchers]) watcher();
}

export function useKept<T>(name: string, otherwise: T): [T, (value: T) => void] {
  const value = useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => kept(name, otherwise),
  );
  return [value, (fresh) => keep(name, fresh)];
}

export type Theme = "system" | "light" | "dark";

export function applyTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
