/** What everything on the page shares: the project, the stream of changes, dark or light. */
import { createContext, useContext, useEffect, useMemo, useRef, useState, useSyncExternalStore, type ReactNode } from "react";
import type { Live, Connection, LiveEvent } from "../api/live";
import type { SiteFacts } from "../api/client";
import { useKept, type Theme } from "./local";

interface Shared {
  facts: SiteFacts;
  /** The key of the project, "" for the one that the server was started in. */
  project: string;
  live: Live;
  isDark: boolean;
}

const SharedContext = createContext<Shared | null>(null);

interface Provided {
  facts: SiteFacts;
  project: string;
  live: Live;
  children: ReactNode;
}

export function SharedProvider({ facts, project, live, children }: Provided) {
  const isDark = useIsDark();
  const value = useMemo(() => ({ facts, project, live, isDark }), [facts, project, live, isDark]);
  return <SharedContext value={value}>{children}</SharedContext>;
}

export function useShared(): Shared {
  const found = useContext(SharedContext);
  if (!found) throw new Error("there is no provider above");
  return found;
}

/** Call back for each event as long as the caller is on the page. */
export function useLive(handler: (event: LiveEvent) => void): void {
  const { live } = useShared();
  const latest = useRef(handler);
  useEffect(() => {
    latest.current = handler;
  });
  useEffect(() => live.listen((event) => latest.current(event)), [live]);
}

export function useConnection(): Connection {
  const { live } = useShared();
  return useSyncExternalStore(live.watch, () => live.connection);
}

const darkMedia = matchMedia("(prefers-color-scheme: dark)");

function useIsDark(): boolean {
  const [theme] = useKept<Theme>("theme", "system");
  const isSystemDark = useSyncExternalStore(
    (watcher) => {
      darkMedia.addEventListener("change", watcher);
      return () => darkMedia.removeEventListener("change", watcher);
    },
    () => darkMedia.matches,
  );
  return theme === "system" ? isSystemDark : theme === "dark";
}

/** Return the time in unix seconds, again every `every` seconds. */
export function useNow(every: number): number {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), every * 1000);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}

export function useMedia(query: string): boolean {
  const media = useMemo(() => matchMedia(query), [query]);
  return useSyncExternalStore(
    (watcher) => {
      media.addEventListener("change", watcher);
      return () => media.removeEventListener("change", watcher);
    },
    () => media.matches,
  );
}
