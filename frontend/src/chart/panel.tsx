/** One panel: the curves of a metric, and the values under the cursor. */
import { memo, useEffect, useMemo, useRef, useState } from "react";
import type { Zoom } from "../state/address";
import type { Style } from "../state/colors";
import { count, duration, moment, number } from "../state/format";
import { useShared } from "../state/site";
import type { Line } from "./drawing";
import { valueAt } from "./drawing";
import type { Axis } from "./panels";
import { useIsNear, useSheetVersion } from "./panels";
import { Plot } from "./plot";
import type { Sheet } from "./sheets";
import { smoothed } from "./smooth";
import styles from "./panels.module.css";

export interface PanelRun {
  id: string;
  label: string;
}

interface PanelProps {
  metric: string;
  runs: readonly PanelRun[];
  looks: ReadonlyMap<string, Style>;
  sheet: Sheet;
  axis: Axis;
  zoom: Zoom | null;
  onZoom: (zoom: Zoom | null) => void;
  group: string;
}

const HEIGHT = 176;
const MOST_VALUES = 12;

export const Panel = memo(function Panel(props: PanelProps) {
  const [place, isNear] = useIsNear<HTMLDivElement>();
  const { metric } = props;
  const cut = metric.indexOf("/");
  return (
    <figure ref={place} className={styles.panel} aria-label={metric}>
      <figcaption className={styles.caption} title={metric}>
        {cut < 0 ? metric : metric.slice(cut + 1)}
      </figcaption>
      <div className={styles.chart}>{isNear && <Curves {...props} />}</div>
    </figure>
  );
});

function Curves({ metric, runs, looks, sheet, axis, zoom, onZoom, group }: PanelProps) {
  const { isDark } = useShared();
  const version = useSheetVersion(sheet);
  const [hover, setHover] = useState<{ x: number; left: number; top: number; value: number } | null>(null);
  const [strong, setStrong] = useState<string | null>(null);
  useEffect(() => {
    const unmount = sheet.mount(metric);
    return unmount;
  }, [sheet, metric]);
  useEffect(() => {
    sheet.need(
      runs.map((run) => run.id),
      metric,
    );
  }, [sheet, runs, metric, version]);

  const fresh = useMemo(() => linesOf(sheet, metric, runs, looks, axis.smooth), [sheet, metric, runs, looks, axis.smooth, version]); // eslint-disable-line react-hooks/exhaustive-deps -- the sheet changes in place, which the version says
  // Until curves of a new look have come, those of the old one stay.
  const shown = useRef(fresh.lines);
  if (fresh.isComplete || fresh.lines.length) shown.current = fresh.lines;
  const lines = shown.current;

  const kind = axis.x === "time" ? "time" : axis.x === "elapsed" ? "elapsed" : "number";
  return (
    <>
      <Plot
        lines={lines}
        zoom={zoom}
        xKind={kind}
        logX={axis.logX}
        logY={false}
        cutOutliers={false}
        group={group}
        isDark={isDark}
        strong={strong}
        height={HEIGHT}
        label={`${metric}: ${runs.length} ${runs.length === 1 ? "run" : "runs"}`}
        last={Math.max(...lines.map((line) => line.curve.last))}
        onZoom={onZoom}
        onHover={(at) => {
          setHover(at);
          setStrong(at ? closest(lines, at.x, at.value) : null);
        }}
      />
      {hover && <Values at={hover} lines={lines} strong={strong} kind={kind} />}
    </>
  );
}

function linesOf(sheet: Sheet, metric: string, runs: readonly PanelRun[], looks: ReadonlyMap<string, Style>, smooth: number): { lines: Line[]; isComplete: boolean } {
  const lines: Line[] = [];
  let isComplete = true;
  for (const run of runs) {
    const found = sheet.curve(run.id, metric);
    if (!found) isComplete = false;
    const look = looks.get(run.id)!;
    for (const curve of found ?? []) {
      const isLeft = curve.branch !== 0;
      lines.push({
        id: run.id,
        label: run.label,
        color: isLeft ? "#8a929c" : look.color,
        dash: look.dash,
        curve,
        smooth: smooth > 0 && !isLeft ? smoothed(curve, smooth) : null,
        isLeft,
        band: null,
      });
    }
  }
  lines.sort((a, b) => Number(b.isLeft) - Number(a.isLeft));
  return { lines, isComplete };
}

/** Return the line that is nearest to the cursor. */
function closest(lines: readonly Line[], x: number, value: number): string | null {
  let found: string | null = null;
  let least = Infinity;
  for (const line of lines) {
    if (line.isLeft) continue;
    const at = valueAt(line, x);
    if (!at) continue;
    const off = Math.abs(at.value - value);
    if (off < least) [least, found] = [off, line.id];
  }
  return found;
}

interface ValuesProps {
  at: { x: number; left: number; top: number };
  lines: readonly Line[];
  strong: string | null;
  kind: "number" | "time" | "elapsed";
}

/** The values of all runs at the cursor, the largest first. */
function Values({ at, lines, strong, kind }: ValuesProps) {
  const values = lines
    .filter((line) => !line.isLeft)
    .map((line) => ({ line, found: valueAt(line, at.x) }))
    .filter((each): each is { line: Line; found: NonNullable<ReturnType<typeof valueAt>> } => each.found !== null)
    .sort((a, b) => b.found.value - a.found.value);
  if (!values.length) return null;
  const place = Math.max(0, values.findIndex((each) => each.line.id === strong));
  const from = Math.max(0, Math.min(values.length - MOST_VALUES, place - MOST_VALUES / 2));
  const listed = values.slice(from, from + MOST_VALUES);
  const rest = values.length - listed.length;
  const x = values[place]!.found.x;
  return (
    <div className={styles.values} data-side={at.left > 180 ? "left" : "right"} style={{ left: at.left, top: 8 }} aria-hidden="true">
      <div className={styles.x}>{kind === "time" ? moment(x) : kind === "elapsed" ? duration(x) : Number.isInteger(x) ? `step ${count(x)}` : number(x)}</div>
      {listed.map(({ line, found }) => (
        <div key={line.id} className={styles.value} data-strong={line.id === strong || undefined}>
          <span className={styles.swatch} style={{ background: line.color }} />
          <span className={styles.label}>{line.label}</span>
          <span className={styles.amount}>
            {number(found.value)}
            {found.low !== found.high && <span className="quiet"> {number(found.low)}…{number(found.high)}</span>}
          </span>
        </div>
      ))}
      {rest > 0 && <div className={styles.rest}>and {rest} more</div>}
    </div>
  );
}
