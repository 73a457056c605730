/** Panels of curves: one for each metric, in sections by prefix; those out of sight cost nothing. */
import { useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";
import { Icon } from "../parts/icons";
import type { Zoom } from "../state/address";
import { stylesOf } from "../state/colors";
import { useLive, useShared } from "../state/site";
import { Panel, type PanelRun } from "./panel";
import { keyOf, Sheet, type Look } from "./sheets";
import styles from "./panels.module.css";

export interface Axis {
  /** "" for the step; "time", "elapsed", "epoch" or a metric. */
  x: string;
  logX: boolean;
  smooth: number;
}

interface PanelsProps {
  runs: readonly PanelRun[];
  metrics: readonly string[];
  axis: Axis;
  zoom: Zoom | null;
  onZoom: (zoom: Zoom | null) => void;
  /** The name under which this page keeps which sections are open. */
  place: string;
}

const SYSTEM = ["time", "speed", "memory", "gpu", "system"];
const MOST_OPEN = 24;

export function Panels({ runs, metrics, axis, zoom, onZoom, place }: PanelsProps) {
  const { isDark } = useShared();
  const sheet = useSheet(axis, zoom);
  const ids = useMemo(() => runs.map((run) => run.id), [runs]);
  const looks = useMemo(() => stylesOf(ids, isDark), [ids, isDark]);
  const sections = useMemo(() => sectionsOf(metrics), [metrics]);
  const [closed, setClosed] = useState<Record<string, boolean>>({});
  let open = 0;
  return (
    <div className={styles.panels} data-place={place}>
      {sections.map(({ name, metrics: inside }) => {
        const isOpen = closed[name] === undefined ? !SYSTEM.includes(name) && open < MOST_OPEN : !closed[name];
        open += isOpen ? inside.length : 0;
        return (
          <section key={name} className={styles.section} aria-label={name}>
            <h2 className={styles.title}>
              <button type="button" aria-expanded={isOpen} onClick={() => setClosed({ ...closed, [name]: isOpen })}>
                <Icon name={isOpen ? "chevron" : "right"} size={14} />
                {name} <span className="quiet">{inside.length}</span>
              </button>
            </h2>
            {isOpen && (
              <div className={styles.grid}>
                {inside.map((metric) => (
                  <Panel key={metric} metric={metric} runs={runs} looks={looks} sheet={sheet} axis={axis} zoom={zoom} onZoom={onZoom} group={place} />
                ))}
              </div>
            )}
          </section>
        );
      })}
    </div>
  );
}

/** Return metrics by what stands before the first slash, those of the machine last. */
export function sectionsOf(metrics: readonly string[]): { name: string; metrics: string[] }[] {
  const found = new Map<string, string[]>();
  for (const metric of metrics) {
    const name = metric.includes("/") ? metric.slice(0, metric.indexOf("/")) : "metrics";
    found.set(name, [...(found.get(name) ?? []), metric]);
  }
  const rank = (name: string) => (name === "train" ? 0 : name === "valid" ? 1 : name === "test" ? 2 : SYSTEM.includes(name) ? 9 : 3);
  return [...found]
    .map(([name, inside]) => ({ name, metrics: inside }))
    .sort((a, b) => rank(a.name) - rank(b.name) || (a.name < b.name ? -1 : 1));
}

/** Return the sheet of a look; the one of before stays until the page has drawn the new one. */
function useSheet(axis: Axis, zoom: Zoom | null): Sheet {
  const { project } = useShared();
  const look: Look = {
    project,
    x: axis.x,
    low: zoom?.low ?? null,
    high: zoom?.high ?? null,
    points: 320,
    logx: axis.logX,
    branches: true,
  };
  const key = keyOf(look);
  // eslint-disable-next-line react-hooks/exhaustive-deps -- the key says all of the look
  const sheet = useMemo(() => new Sheet(look), [key]);
  useEffect(() => () => sheet.close(), [sheet]);
  useLive((event) => {
    if (event.rows) sheet.grown(Object.keys(event.rows));
    if (event.changed?.length) sheet.forget(event.changed);
  });
  return sheet;
}

/** Call back once an element comes near the window, and again when it leaves. */
export function useIsNear<T extends Element>(): [React.RefObject<T | null>, boolean] {
  const place = useRef<T>(null);
  const [isNear, setNear] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => setNear(entries.at(-1)!.isIntersecting), { rootMargin: "300px" });
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, []);
  return [place, isNear];
}

export function useSheetVersion(sheet: Sheet): number {
  return useSyncExternalStore(sheet.watch, sheet.snapshot);
}
