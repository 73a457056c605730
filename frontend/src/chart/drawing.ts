/** Lines on a canvas: curves with their spread, smoothed ones over pale ones, bands of groups. */
import { lowerBound, type Curve } from "../api/curves";
import { inkOf, type Pixels } from "./pixels";

export interface Line {
  /** What tells it from the others of a chart. */
  key: string;
  /** The run or group that it belongs to. */
  id: string;
  label: string;
  /** The same in few characters. */
  short: string;
  color: string;
  dash: readonly number[];
  curve: Curve;
  /** Drawn over the pale curve, when there is smoothing. */
  smooth: Float64Array | null;
  /** A branch that was left behind: thin and grey. */
  isLeft: boolean;
  /** Low and high of a band, for a group. */
  band: { lows: Float64Array; highs: Float64Array } | null;
}

export interface Scales {
  x: (value: number) => number;
  y: (value: number) => number;
  low: number;
  high: number;
  /** Where dense lines are drawn among so many that dashes tell nobody apart. */
  crowd: Pixels | null;
}

const PALE = 0.28;
/** Pixels of the canvas between two points, up to which they are dense. */
const DENSE = 2;

/** What lines are drawn with: a canvas, or what writes the same as SVG. */
export type Pen = Pick<CanvasRenderingContext2D, "beginPath" | "moveTo" | "lineTo" | "rect" | "arc" | "closePath" | "fill" | "stroke" | "setLineDash" | "lineWidth" | "lineJoin" | "globalAlpha"> &
  Colors;

interface Colors {
  strokeStyle: unknown;
  fillStyle: unknown;
}

/** Draw one line. `ratio` is how many pixels of the canvas one of the page has. */
export function drawLine(to: Pen, line: Line, scales: Scales, ratio: number, isStrong: boolean): void {
  const { curve } = line;
  const [from, until] = shown(curve, scales.low, scales.high);
  to.lineJoin = "round";
  to.strokeStyle = to.fillStyle = line.color;
  to.setLineDash(line.isLeft ? [] : line.dash.map((each) => each * ratio));
  if (line.band) {
    to.globalAlpha = 0.16;
    area(to, curve.xs, line.band.lows, line.band.highs, scales, from, until);
  }
  if (line.isLeft) {
    to.globalAlpha = 0.55;
    to.lineWidth = ratio;
    stroke(to, curve.xs, curve.means, scales, from, until, ratio);
  } else if (line.smooth) {
    to.globalAlpha = PALE;
    to.lineWidth = ratio;
    to.setLineDash([]);
    if (curve.raw) stroke(to, curve.xs, curve.means, scales, from, until, ratio);
    else area(to, curve.xs, curve.lows, curve.highs, scales, from, until);
    to.globalAlpha = 1;
    to.setLineDash(line.dash.map((each) => each * ratio));
    to.lineWidth = (isStrong ? 2.5 : 1.5) * ratio;
    stroke(to, curve.xs, line.smooth, scales, from, until, ratio);
  } else {
    to.globalAlpha = 1;
    to.lineWidth = (isStrong ? 2.5 : 1.25) * ratio;
    if (curve.raw || line.band) stroke(to, curve.xs, curve.means, scales, from, until, ratio);
    else if (curve.ordered && (scales.crowd || !line.dash.length) && isDense(curve.xs, scales, from, until)) ribbon(to, curve, scales, from, until);
    else spans(to, curve, scales, from, until);
  }
  to.globalAlpha = 1;
  to.setLineDash([]);
}

/** Return the indices of the points between two values of x, with one more on either side. */
function shown({ xs, ordered }: Curve, low: number, high: number): [number, number] {
  // A curve over another metric may go back and forth: all of it is drawn.
  if (!ordered) return [0, xs.length];
  return [Math.max(0, lowerBound(xs, low) - 1), Math.min(xs.length, lowerBound(xs, high) + 1)];
}

function stroke(
  to: Pen,
  xs: Float64Array,
  ys: Float64Array,
  { x, y }: Scales,
  from: number,
  until: number,
  ratio: number,
): void {
  to.beginPath();
  let points = 0;
  let lastX = 0;
  let lastY = 0;
  for (let i = from; i < until; i++) {
    const value = ys[i]!;
    const at = y(value);
    // What is no number, or has no place on a logarithmic axis, is a gap.
    if (!Number.isFinite(at)) {
      if (points === 1) dot(to, lastX, lastY, ratio);
      points = 0;
      continue;
    }
    lastX = x(xs[i]!);
    lastY = at;
    if (points === 0) to.moveTo(lastX, lastY);
    else to.lineTo(lastX, lastY);
    points += 1;
  }
  if (points === 1) dot(to, lastX, lastY, ratio);
  to.stroke();
}

/** One point alone has no length: it is a dot. */
function dot(to: Pen, x: number, y: number, ratio: number): void {
  to.moveTo(x + 1.5 * ratio, y);
  to.arc(x, y, 1.5 * ratio, 0, 2 * Math.PI);
  to.moveTo(x + 0.5 * ratio, y);
  to.arc(x, y, 0.5 * ratio, 0, 2 * Math.PI);
}

/** Whether neighbouring points lie so close that a line through the extremes fills what is between them. */
function isDense(xs: Float64Array, { x }: Scales, from: number, until: number): boolean {
  return until - from > 1 && x(xs[until - 1]!) - x(xs[from]!) < DENSE * (until - from - 1);
}

/**
 * The same picture as `spans` where points are dense, as areas: the edges of a stroke that goes up and down in every
 * pixel take many times as long to draw.
 */
function ribbon(to: Pen, curve: Curve, { x, y, crowd }: Scales, from: number, until: number): void {
  const least = crowd ? 0 : 1;
  const half = to.lineWidth / 2;
  const places = new Float64Array(until - from);
  const tops = new Float64Array(until - from);
  const bottoms = new Float64Array(until - from);
  let count = 0;
  to.beginPath();
  for (let i = from; i <= until; i++) {
    const top = i < until ? y(curve.highs[i]!) - half : NaN;
    const bottom = i < until ? y(curve.lows[i]!) + half : NaN;
    if (!Number.isFinite(top) || !Number.isFinite(bottom)) {
      if (crowd) columns(crowd, to.fillStyle as string, places, tops, bottoms, count);
      else outline(to, places, tops, bottoms, count, half);
      count = 0;
      continue;
    }
    const at = x(curve.xs[i]!);
    // Points of one pixel are one.
    if (count > least && Math.floor(at) === Math.floor(places[count - 1]!)) {
      tops[count - 1] = Math.min(tops[count - 1]!, top);
      bottoms[count - 1] = Math.max(bottoms[count - 1]!, bottom);
      continue;
    }
    places[count] = at;
    tops[count] = top;
    bottoms[count] = bottom;
    count += 1;
  }
  to.fill();
}

/** Add the outline of ranges of y to the path: along the tops, and back along the bottoms. */
function outline(
  to: Pen,
  places: Float64Array,
  tops: Float64Array,
  bottoms: Float64Array,
  count: number,
  half: number,
): void {
  if (count === 0) return;
  if (count === 1) {
    to.rect(places[0]! - half, tops[0]!, 2 * half, bottoms[0]! - tops[0]!);
    return;
  }
  for (let i = 1; i < count; i++) touch(tops, bottoms, i);
  to.moveTo(places[0]!, tops[0]!);
  for (let i = 1; i < count; i++) to.lineTo(places[i]!, tops[i]!);
  for (let i = count - 1; i >= 0; i--) to.lineTo(places[i]!, bottoms[i]!);
  to.closePath();
}

/** Fill ranges of y one by one, each as wide as the pixels up to the next. */
function columns(to: Pixels, color: string, places: Float64Array, tops: Float64Array, bottoms: Float64Array, count: number): void {
  const ink = inkOf(color);
  for (let i = 1; i < count; i++) touch(tops, bottoms, i);
  for (let i = 0; i < count; i++) {
    const left = Math.floor(places[i]!);
    const right = i + 1 < count ? Math.floor(places[i + 1]!) : left + 1;
    to.fill(left, right, tops[i]!, bottoms[i]!, ink);
  }
}

/** Widen two neighbouring ranges of y until they touch, so that a jump is drawn in full width. */
function touch(tops: Float64Array, bottoms: Float64Array, at: number): void {
  if (tops[at]! > bottoms[at - 1]!) tops[at] = bottoms[at - 1] = (tops[at]! + bottoms[at - 1]!) / 2;
  else if (bottoms[at]! < tops[at - 1]!) bottoms[at] = tops[at - 1] = (bottoms[at]! + tops[at - 1]!) / 2;
}

/** From the lowest to the highest value of each range, so that no spike is lost. */
function spans(to: Pen, curve: Curve, { x, y }: Scales, from: number, until: number): void {
  to.beginPath();
  let isOpen = false;
  let wasUp = false;
  for (let i = from; i < until; i++) {
    const low = y(curve.lows[i]!);
    const high = y(curve.highs[i]!);
    if (!Number.isFinite(low) || !Number.isFinite(high)) {
      isOpen = false;
      continue;
    }
    const at = x(curve.xs[i]!);
    const [first, second] = wasUp ? [high, low] : [low, high];
    if (isOpen) to.lineTo(at, first);
    else to.moveTo(at, first);
    if (first !== second) to.lineTo(at, second);
    isOpen = true;
    wasUp = !wasUp;
  }
  to.stroke();
}

function area(
  to: Pen,
  xs: Float64Array,
  lows: Float64Array,
  highs: Float64Array,
  { x, y }: Scales,
  from: number,
  until: number,
): void {
  let start = from;
  while (start < until) {
    while (start < until && !(Number.isFinite(y(lows[start]!)) && Number.isFinite(y(highs[start]!)))) start++;
    let end = start;
    while (end < until && Number.isFinite(y(lows[end]!)) && Number.isFinite(y(highs[end]!))) end++;
    if (end > start) {
      to.beginPath();
      for (let i = start; i < end; i++) to.lineTo(x(xs[i]!), y(highs[i]!));
      for (let i = end - 1; i >= start; i--) to.lineTo(x(xs[i]!), y(lows[i]!));
      to.closePath();
      to.fill();
    }
    start = end;
  }
}

export interface Extent {
  x: [number, number];
  y: [number, number];
  /** How many values lie above or below, where outliers are left out. */
  outside: number;
}

/** Return smallest and largest x and y of lines; null when there is nothing to see. */
export function extent(
  lines: readonly Line[],
  within: { low: number; high: number } | null,
  { cutOutliers, log }: { cutOutliers: boolean; log: boolean },
): Extent | null {
  let left = Infinity;
  let right = -Infinity;
  let bottom = Infinity;
  let top = -Infinity;
  const all: number[] = [];
  for (const { curve, smooth, band } of lines) {
    const [from, until] = within ? shown(curve, within.low, within.high) : [0, curve.xs.length];
    left = Math.min(left, curve.first);
    right = Math.max(right, curve.last);
    const below = band ? band.lows : smooth && cutOutliers ? smooth : curve.lows;
    const above = band ? band.highs : smooth && cutOutliers ? smooth : curve.highs;
    for (let i = from; i < until; i++) {
      const at = curve.xs[i]!;
      if (within && (at < within.low || at > within.high)) continue;
      const low = below[i]!;
      const high = above[i]!;
      if (low < bottom && (!log || low > 0)) bottom = low;
      if (high > top && (!log || high > 0)) top = high;
      if (log && low <= 0 && high > 0 && high < bottom) bottom = high;
      if (cutOutliers && low === low) all.push(low, high);
    }
  }
  if (within) [left, right] = [within.low, within.high];
  if (!Number.isFinite(left) || !(bottom <= top)) return null;
  let outside = 0;
  if (cutOutliers && all.length > 40) {
    const sorted = Float64Array.from(all).sort();
    bottom = Math.max(bottom, sorted[Math.floor(0.02 * sorted.length)]!);
    top = Math.min(top, sorted[Math.ceil(0.98 * sorted.length) - 1]!);
    for (const value of all) if (value < bottom || value > top) outside++;
  }
  return { x: [left, right], y: [bottom, top], outside };
}

/** Return x and y of a canvas for values. uPlot can do it too, point by point at several times the cost. */
export function scalesOf(
  { x, y, logX, logY }: { x: [number, number]; y: [number, number]; logX: boolean; logY: boolean },
  left: number,
  top: number,
  width: number,
  height: number,
): Scales {
  const along = (low: number, high: number, from: number, size: number, isLog: boolean) => {
    if (isLog) {
      const start = Math.log(low);
      const scale = size / (Math.log(high) - start);
      return (value: number) => (value > 0 ? from + (Math.log(value) - start) * scale : NaN);
    }
    const span = high - low;
    return (value: number) => from + ((value - low) / span) * size;
  };
  return { x: along(x[0], x[1], left, width, logX), y: along(y[0], y[1], top + height, -height, logY), low: x[0], high: x[1], crowd: null };
}

/** Return how many points lie below or above the ends of a y axis. */
export function valuesBeyond(lines: readonly Line[], within: { low: number; high: number } | null, bottom: number, top: number): number {
  let beyond = 0;
  for (const { curve, isLeft } of lines) {
    if (isLeft) continue;
    const [from, until] = within ? shown(curve, within.low, within.high) : [0, curve.xs.length];
    for (let i = from; i < until; i++) if (curve.lows[i]! < bottom || curve.highs[i]! > top) beyond++;
  }
  return beyond;
}

/** Return how many points a logarithmic y axis has no place for, and how many it shows. */
export function placesOnLog(lines: readonly Line[], within: { low: number; high: number } | null): { hidden: number; left: number } {
  let hidden = 0;
  let left = 0;
  for (const { curve } of lines) {
    const [from, until] = within ? shown(curve, within.low, within.high) : [0, curve.xs.length];
    for (let i = from; i < until; i++) {
      if (curve.lows[i]! <= 0) hidden++;
      if (curve.highs[i]! > 0) left++;
    }
  }
  return { hidden, left };
}

/** Return the value of a line at x: that of the last point at or before it; null before its first and after its end. */
export function valueAt(line: Line, x: number): { x: number; value: number; low: number; high: number } | null {
  const { xs, ordered } = line.curve;
  if (!ordered) return pointAt(line, newest(xs, x));
  if (!xs.length || x < xs[0]! || x > line.curve.last) return nearest(line, x);
  return pointAt(line, Math.max(0, lowerBound(xs, x + 1e-9 * Math.abs(x)) - 1));
}

function pointAt(line: Line, at: number): { x: number; value: number; low: number; high: number } | null {
  const { xs, values } = line.curve;
  const { lows, highs } = line.band ?? line.curve;
  return at < 0 ? null : { x: xs[at]!, value: line.smooth?.[at] ?? values[at]!, low: lows[at]!, high: highs[at]! };
}

/** Return the index of the point that is nearest to x; of several passes, the newest. -1 when there is none. */
function newest(xs: Float64Array, x: number): number {
  let found = -1;
  let least = Infinity;
  for (let i = 0; i < xs.length; i++) {
    const off = Math.abs(xs[i]! - x);
    if (off <= least) [found, least] = [i, off];
  }
  return found;
}

/** A curve of one point, or the cursor a little beside an end: the end itself. */
function nearest(line: Line, x: number): { x: number; value: number; low: number; high: number } | null {
  const { xs, first, last } = line.curve;
  const slack = 0.02 * (last - first);
  if (!xs.length || x < first - slack || x > last + slack) return null;
  return pointAt(line, x < first ? 0 : xs.length - 1);
}
