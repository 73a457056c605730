/** One chart: uPlot for axes, cursor and zoom; the lines are drawn by `drawing.ts`, each with points of its own. */
import { useEffect, useLayoutEffect, useMemo, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { drawLine, extent, scalesOf, valuesBeyond, type Line } from "./drawing";
import { Pixels } from "./pixels";
import { ticksOf, type AxisKind, type Ticks } from "./ticks";
import type { Zoom } from "../state/address";
import styles from "./plot.module.css";

/** A moment worth a tick at the axis: a checkpoint, a resume. A click on it opens its event. */
export interface Mark {
  step: number;
  /** Unix seconds. */
  at: number;
  /** Seconds since the run began. */
  elapsed: number;
  label: string;
  color: string;
  onOpen: () => void;
}

const CROWD = 24;

/** Where the pointer is: in values, and in pixels of the panel. */
export interface Hover {
  x: number;
  value: number;
  left: number;
  top: number;
  width: number;
  /** The mark under it, "" for none. */
  mark: string;
}

export interface PlotOptions {
  lines: readonly Line[];
  marks?: readonly Mark[] | undefined;
  zoom: Zoom | null;
  xKind: AxisKind;
  logX: boolean;
  logY: boolean;
  cutOutliers: boolean;
  /** Ends of the y axis that were chosen by hand. */
  low?: number | undefined;
  high?: number | undefined;
  /** Charts of one name share their cursor and their zoom. */
  group: string;
  isDark: boolean;
  /** The line that is drawn above the others. */
  strong: string | null;
  height: number;
  label: string;
  /** The last x that is drawn: tests wait for it. */
  last: number;
  onZoom: (zoom: Zoom | null) => void;
  onHover: (at: Hover | null) => void;
  /** How many values lie outside of the range, where outliers are left out of it or it was chosen by hand. */
  onOutside: (count: number) => void;
}

interface Live extends PlotOptions {
  x: [number, number];
  y: [number, number];
  outside: number;
}

/** A canvas that is drawn again when what it shows changes, and never for the cursor. */
export function Plot(options: PlotOptions) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const live = useRef<Live>({ ...options, ...rangesOf(options) });

  // What is drawn decides, not who asked: a cursor that moves draws nothing again.
  const { lines, zoom, strong, marks, cutOutliers, low, high } = options;
  const ranges = useMemo(
    () => rangesOf(options),
    // eslint-disable-next-line react-hooks/exhaustive-deps -- these are what the ranges are made of
    [lines, zoom, cutOutliers, low, high, options.logX, options.logY],
  );
  live.current = { ...options, ...ranges };
  useLayoutEffect(() => redraw(plot.current, live.current), [ranges, lines, strong, marks]);
  const { onOutside } = options;
  useEffect(() => onOutside(ranges.outside), [onOutside, ranges.outside]);

  const { logX, logY, xKind, isDark, group } = options;
  useEffect(() => {
    const element = place.current!;
    const made = make(element, live);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      const width = element.clientWidth;
      if (width > 0) made.setSize({ width, height: live.current.height });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [logX, logY, xKind, isDark, group]);

  const height = options.height;
  useEffect(() => {
    const element = place.current!;
    if (element.clientWidth > 0) plot.current?.setSize({ width: element.clientWidth, height });
  }, [height]);

  return <div ref={place} className={styles.plot} style={{ height }} role="img" aria-label={options.label} data-last={options.last} />;
}

export interface Ranges {
  x: [number, number];
  y: [number, number];
  outside: number;
}

/** Return the ends of both axes, and how many values lie outside. */
export function rangesOf(options: Pick<PlotOptions, "lines" | "zoom" | "cutOutliers" | "logX" | "logY" | "low" | "high">): Ranges {
  const { lines, zoom, cutOutliers, logY, logX } = options;
  const found = extent(lines, zoom, { cutOutliers, log: logY });
  const x = padded(zoom ? [zoom.low, zoom.high] : (found?.x ?? [0, 1]), logX, 0);
  const y = padded(found?.y ?? [0, 1], logY, 0.06);
  const hasPlace = (end: number | undefined): end is number => end !== undefined && (!logY || end > 0);
  const low = hasPlace(options.low) ? options.low : y[0];
  const high = hasPlace(options.high) ? options.high : y[1];
  if (!(low < high) || (low === y[0] && high === y[1])) return { x, y, outside: found?.outside ?? 0 };
  return { x, y: [low, high], outside: valuesBeyond(lines, zoom, low, high) };
}

function padded([low, high]: [number, number], isLog: boolean, share: number): [number, number] {
  if (isLog) {
    const least = low > 0 ? low : high > 0 ? high / 1e3 : 1;
    const most = high > least ? high : least * 10;
    const room = (most / least) ** share;
    return [least / room, most * room];
  }
  if (low === high) {
    const room = Math.abs(low) * 0.05 || 0.5;
    return [low - room, high + room];
  }
  return [low - share * (high - low), high + share * (high - low)];
}

/** Return the scale of an axis; the enumeration of uPlot is there for the compiler alone. */
function distributionOf(isLog: boolean): uPlot.Scale.Distr {
  return isLog ? 3 : 1;
}

function redraw(plot: uPlot | null, live: Live): void {
  if (!plot) return;
  // One point: with more of them uPlot refuses ranges that are smaller than 1e-16.
  plot.batch(() => {
    plot.setData([[live.x[0]], [null]], false);
    plot.setScale("x", { min: live.x[0], max: live.x[1] });
    plot.setScale("y", { min: live.y[0], max: live.y[1] });
    plot.redraw(false, true);
  });
}

function make(element: HTMLElement, live: { readonly current: Live }): uPlot {
  const { group, height, logX, logY } = live.current;
  const read = getComputedStyle(element);
  const quiet = read.getPropertyValue("color");
  const grid = read.getPropertyValue("border-top-color");
  const font = `11px ${read.fontFamily}`;
  const axis: uPlot.Axis = {
    stroke: quiet,
    font,
    grid: { stroke: grid, width: 1 },
    ticks: { show: false },
    // What uPlot knows of distances ends at 1e-16 and 1e32: the ticks are ours, which fit any.
    incrs: () => [Infinity],
    filter: (_, splits) => splits,
    values: (_, __, at) => ticks[at]!.labels,
  };
  const ticks: Ticks[] = [NO_TICKS, NO_TICKS];
  const rooms = [0, 0];
  const options: uPlot.Options = {
    width: Math.max(50, element.clientWidth),
    height,
    padding: [8, () => beyond(live.current.x, ticks[0]!, rooms[0]!, font, live.current.logX), 0, 0],
    legend: { show: false },
    scales: {
      x: { time: false, auto: false, distr: distributionOf(logX), range: () => live.current.x },
      y: { auto: false, distr: distributionOf(logY), range: () => live.current.y },
    },
    series: [{}, { paths: () => null, points: { show: false } }],
    axes: [
      {
        ...axis,
        size: () => (live.current.xKind === "time" ? 38 : 24),
        gap: 4,
        space: (_, __, ___, ____, room) => (rooms[0] = room) && SPACE_X,
        splits: (_, __, low, high) => (ticks[0] = xTicks(low, high, rooms[0]!, font, live.current)).values,
      },
      {
        ...axis,
        size: (_, values) => 12 + Math.ceil(Math.max(...(values as string[] | null ?? []).map((each) => widthOf(each, font)), 20)),
        gap: 6,
        space: (_, __, ___, ____, room) => (rooms[1] = room) && SPACE_Y,
        splits: (_, __, low, high) => (ticks[1] = yTicks(low, high, rooms[1]!, live.current)).values,
      },
    ],
    cursor: {
      points: { show: false },
      y: false,
      drag: { x: true, y: false, setScale: false, dist: 4 },
      sync: { key: group, setSeries: false, scales: ["x", null], filters: { pub: isMove, sub: isMove } },
    },
    hooks: {
      draw: [
        (self) => {
          paint(self, live.current);
          followPointer(self);
        },
      ],
      setSelect: [
        (self) => {
          if (self.select.width < 4) return;
          let low = self.posToVal(self.select.left, "x");
          let high = self.posToVal(self.select.left + self.select.width, "x");
          if (live.current.xKind === "step") [low, high] = [Math.floor(low), Math.ceil(high)];
          self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          if (high > low) live.current.onZoom({ low, high });
        },
      ],
      setCursor: [
        (self) => {
          // A cursor that another chart moved is only shown: the numbers belong to the chart under the pointer.
          const { left, top, event } = self.cursor;
          if (event == null) return;
          if (left === undefined || top === undefined || left < 0) live.current.onHover(null);
          else {
            live.current.onHover({
              x: self.posToVal(left, "x"),
              value: self.posToVal(top, "y"),
              left: left + self.over.offsetLeft,
              top: top + self.over.offsetTop,
              width: self.width,
              mark: markAt(self, live.current, left)?.label ?? "",
            });
          }
        },
      ],
    },
  };
  const plot = new uPlot(options, [[live.current.x[0]], [null]], element);
  plot.over.addEventListener("click", () => {
    if (plot.cursor.left !== undefined) markAt(plot, live.current, plot.cursor.left)?.onOpen();
  });
  plot.over.addEventListener("dblclick", () => live.current.onZoom(null));
  plot.over.addEventListener("pointerleave", () => live.current.onHover(null));
  // A chart that comes to lie under the pointer hears of no move. uPlot keeps the place of the chart until a scroll or a
  // resize of the window, though anything above the chart can push it away.
  plot.over.addEventListener("mouseenter", (event) => pointAt(plot, event));
  plot.root.addEventListener("mousemove", () => plot.syncRect(true), { capture: true });
  return plot;
}

/** Point at what lies under the pointer by now: it may stand still while points, marks or the layout change. */
function followPointer(plot: uPlot): void {
  const { event, left } = plot.cursor;
  if (event != null && left !== undefined && left >= 0) pointAt(plot, event);
}

function pointAt(plot: uPlot, { clientX, clientY }: MouseEvent): void {
  plot.syncRect(true);
  plot.setCursor({ left: clientX - plot.rect.left, top: clientY - plot.rect.top }, true);
}

const NO_TICKS: Ticks = { values: [], labels: [] };
const SPACE_X = 40;
const SPACE_Y = 22;

type Look = Pick<PlotOptions, "xKind" | "logX" | "logY">;

export function xTicks(low: number, high: number, room: number, font: string, { xKind, logX }: Look): Ticks {
  return ticksOf(low, high, { kind: xKind, isLog: logX, room, space: SPACE_X, measure: (label) => widthOf(label, font) });
}

export function yTicks(low: number, high: number, room: number, { logY }: Look): Ticks {
  return ticksOf(low, high, { kind: "number", isLog: logY, room, space: SPACE_Y, measure: () => 0 });
}

const measure = document.createElement("canvas").getContext("2d");

/** Return how wide a text is, which may have several rows, in pixels. */
export function widthOf(text: string, font: string): number {
  if (!measure) return 40;
  measure.font = font;
  return Math.max(...text.split("\n").map((row) => measure.measureText(row).width));
}

/** Return the room at the right that the last label of the x axis needs. */
function beyond([low, high]: [number, number], { values, labels }: Ticks, room: number, font: string, isLog: boolean): number {
  const last = values.at(-1);
  if (last === undefined) return 10;
  const along = isLog ? Math.log : (value: number) => value;
  const rest = (room * (along(high) - along(last))) / (along(high) - along(low));
  return Math.max(10, Math.ceil(widthOf(labels.at(-1)!, font) / 2 - rest) + 2);
}

function paint(plot: uPlot, live: Live): void {
  const to = plot.ctx;
  const ratio = uPlot.pxRatio;
  const { left, top, width, height } = plot.bbox;
  to.save();
  to.beginPath();
  to.rect(left, top, width, height);
  to.clip();
  const scales = scalesOf(live, left, top, width, height);
  const crowd = live.lines.length > CROWD ? new Pixels(left, top, width, height) : null;
  const last = live.lines.filter((line) => line.key === live.strong);
  for (const line of live.lines) if (line.key !== live.strong) drawLine(to, line, { ...scales, crowd }, ratio, false);
  crowd?.drawOn(to);
  for (const line of last) drawLine(to, line, scales, ratio, true);
  for (const { curve, color, isLeft } of live.lines) {
    if (curve.badAt === null || isLeft) continue;
    // A value that is no number has no height: it is marked where the curve breaks off.
    const at = scales.x(curve.badAt);
    to.fillStyle = color;
    to.beginPath();
    to.moveTo(at - 4 * ratio, top + height);
    to.lineTo(at + 4 * ratio, top + height);
    to.lineTo(at, top + height - 8 * ratio);
    to.fill();
  }
  to.lineWidth = ratio;
  for (const mark of live.marks ?? []) {
    const at = Math.round(scales.x(placeOf(mark, live))) + 0.5;
    if (at < left || at > left + width) continue;
    to.strokeStyle = mark.color;
    to.beginPath();
    to.moveTo(at, top + height);
    to.lineTo(at, top + height - 7 * ratio);
    to.stroke();
  }
  to.restore();
}

function placeOf(mark: Mark, live: Live): number {
  return live.xKind === "time" ? mark.at : live.xKind === "elapsed" ? mark.elapsed : mark.step;
}

/** Return the mark within a few pixels. */
function markAt(plot: uPlot, live: Live, left: number): Mark | undefined {
  return (live.marks ?? []).find((mark) => Math.abs(plot.valToPos(placeOf(mark, live), "x") - left) <= 5);
}

/** What charts tell each other: where the cursor is. What is zoomed to, the address tells them all. */
function isMove(type: string): boolean {
  return type === "mousemove" || type === "mouseleave";
}
