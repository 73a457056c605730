/** The curves of several runs as one: their mean where there are points, and how far they lie apart. */
import type { Curve } from "../api/curves";

export interface Band {
  curve: Curve;
  lows: Float64Array;
  highs: Float64Array;
  /** How many runs there are. */
  count: number;
}

/** Return mean and mean plus and minus one sample deviation; null without any point. */
export function bandOf(curves: readonly Curve[]): Band | null {
  if (!curves.length) return null;
  const width = Math.max(...curves.map((curve) => (curve.raw ? 0 : curve.width)));
  const cells = new Map<number, { x: number; n: number; sum: number; square: number; smooth: number }>();
  for (const { xs, means, smooths } of curves) {
    const own = new Map<number, { x: number; n: number; sum: number; smooth: number }>();
    for (let i = 0; i < xs.length; i++) {
      const value = means[i]!;
      if (value !== value) continue;
      const x = xs[i]!;
      const key = width ? Math.floor(x / width) : x;
      const cell = own.get(key);
      if (cell) {
        cell.n += 1;
        cell.sum += value;
      } else own.set(key, { x, n: 1, sum: value, smooth: smooths?.[i] ?? NaN });
    }
    // In each range a run counts once, however many points it has there.
    for (const [key, { x, n, sum, smooth }] of own) {
      const value = sum / n;
      const cell = cells.get(key) ?? { x, n: 0, sum: 0, square: 0, smooth: 0 };
      cell.n += 1;
      cell.smooth += smooth;
      const before = cell.sum / Math.max(1, cell.n - 1);
      cell.sum += value;
      // Welford's way: sums of squares of close numbers cancel.
      if (cell.n > 1) cell.square += (value - before) * (value - cell.sum / cell.n);
      cells.set(key, cell);
    }
  }
  const sorted = [...cells.values()].sort((a, b) => a.x - b.x);
  if (!sorted.length) return null;
  const xs = Float64Array.from(sorted, (cell) => cell.x);
  const means = Float64Array.from(sorted, (cell) => cell.sum / cell.n);
  const deviation = sorted.map((cell) => (cell.n > 1 ? Math.sqrt(cell.square / (cell.n - 1)) : 0));
  const first = curves[0]!;
  return {
    count: curves.length,
    lows: means.map((mean, i) => mean - deviation[i]!),
    highs: means.map((mean, i) => mean + deviation[i]!),
    curve: {
      ...first,
      raw: true,
      ordered: true,
      branch: 0,
      bad: 0,
      badAt: null,
      first: Math.min(...curves.map((curve) => curve.first)),
      last: Math.max(...curves.map((curve) => curve.last)),
      total: curves.reduce((sum, curve) => sum + curve.total, 0),
      points: curves.reduce((sum, curve) => sum + curve.points, 0),
      lastValue: curves.reduce((sum, curve) => sum + curve.lastValue, 0) / curves.length,
      least: means.reduce((least, mean) => Math.min(least, mean)),
      most: means.reduce((most, mean) => Math.max(most, mean)),
      xs,
      values: means,
      means,
      lows: means,
      highs: means,
      // The average of a mean is the mean of the averages.
      smooths: curves.every((curve) => curve.smooths) ? Float64Array.from(sorted, (cell) => cell.smooth / cell.n) : null,
    },
  };
}
