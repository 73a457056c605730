/** Curves as the server packs them (`web/curve_bytes.py`). */

export interface Curve {
  run: string;
  metric: string;
  /** 0 is the curve; else the attempt that went back behind these points. */
  branch: number;
  raw: boolean;
  /** Whether x never goes back, as it may where it is another metric. */
  ordered: boolean;
  total: number;
  /** Of the whole curve, whatever part of it is drawn. */
  points: number;
  lastValue: number;
  least: number;
  most: number;
  first: number;
  last: number;
  /** How wide the ranges of x are; 0 when there are none. */
  width: number;
  /** How many values are no finite numbers, and where the first of them is. */
  bad: number;
  badAt: number | null;
  xs: Float64Array;
  /** The value at each x: of a range, its first point. */
  values: Float64Array;
  lows: Float64Array;
  highs: Float64Array;
  /** The mean of each range: where the look asks for it, and of a branch that was left behind. */
  means: Float64Array;
  /** The moving average at each x, when the look smooths. */
  smooths: Float64Array | null;
}

export interface CurveAnswer {
  curves: Curve[];
  missing: string[];
  revisions: Record<string, number>;
}

type Value = number | "nan" | "inf" | "-inf";
type Columns = "xs" | "values" | "lows" | "highs" | "means" | "smooths";
type Head = Omit<Curve, Columns | "lastValue" | "least" | "most"> & { n: number; sameX: number | null; mean: boolean; smooth: boolean; lastValue: Value; least: Value; most: Value };

const VALUES = { nan: NaN, inf: Infinity, "-inf": -Infinity };

/** Return a number that JSON may not have. */
function parsed(value: Value): number {
  return typeof value === "number" ? value : VALUES[value];
}

/** Return the curves in an answer; their columns are views of its bytes. */
export function unpack(buffer: ArrayBuffer): CurveAnswer {
  const length = new DataView(buffer).getUint32(0, true);
  const text = new TextDecoder().decode(new Uint8Array(buffer, 4, length));
  const head = JSON.parse(text) as { curves: Head[]; missing: string[]; revisions: Record<string, number> };
  let at = 4 + length;
  const column = (n: number): Float64Array => {
    const found = new Float64Array(buffer, at, n);
    at += 8 * n;
    return found;
  };
  const curves: Curve[] = [];
  for (const { n, sameX, mean, smooth, lastValue, least, most, ...rest } of head.curves) {
    const facts = { ...rest, lastValue: parsed(lastValue), least: parsed(least), most: parsed(most) };
    const xs = sameX === null ? column(n) : curves[sameX]!.xs;
    const values = column(n);
    const [lows, highs] = rest.raw ? [values, values] : [column(n), column(n)];
    const means = mean ? column(n) : values;
    curves.push({ ...facts, xs, values, lows, highs, means, smooths: smooth ? column(n) : null });
  }
  return { curves, missing: head.missing, revisions: head.revisions };
}

/** Return a curve with what came later put in the place of what it had from there on. */
export function extended(old: Curve, fresh: Curve): Curve {
  const from = fresh.xs[0];
  if (from === undefined) return old;
  // One whose x goes back and forth comes whole each time.
  if (!fresh.ordered || !old.ordered) return fresh;
  const keep = lowerBound(old.xs, from);
  const joined = (a: Float64Array, b: Float64Array): Float64Array => {
    const both = new Float64Array(keep + b.length);
    both.set(a.subarray(0, keep));
    both.set(b, keep);
    return both;
  };
  const means = joined(old.means, fresh.means);
  const raw = old.raw && fresh.raw;
  return {
    ...old,
    raw,
    total: Math.max(old.total, fresh.total),
    points: fresh.points,
    lastValue: fresh.lastValue,
    least: fresh.least,
    most: fresh.most,
    first: Math.min(old.first, fresh.first),
    last: Math.max(old.last, fresh.last),
    bad: Math.max(old.bad, fresh.bad),
    badAt: old.badAt ?? fresh.badAt,
    xs: joined(old.xs, fresh.xs),
    values: raw ? means : joined(old.values, fresh.values),
    lows: raw ? means : joined(old.lows, fresh.lows),
    highs: raw ? means : joined(old.highs, fresh.highs),
    means,
    smooths: old.smooths && fresh.smooths && joined(old.smooths, fresh.smooths),
  };
}

/** Return the first index whose value is at least `value`. */
export function lowerBound(sorted: Float64Array, value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
