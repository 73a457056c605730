/** Exponential smoothing of a curve that was reduced: each range counts as often as it has points. */
import type { Curve } from "../api/curves";

/**
 * Return the smoothed value at each range of a curve; nan where nothing is known yet.
 *
 * The average begins without a bias to zero. A range of n points with the mean m moves it as n points of value m do.
 */
export function smoothed(curve: Pick<Curve, "means" | "counts">, weight: number): Float64Array {
  const { means, counts } = curve;
  const found = new Float64Array(means.length);
  let average = 0;
  let seen = 0;
  for (let i = 0; i < means.length; i++) {
    const value = means[i]!;
    if (value === value) {
      const keep = weight ** Math.max(1, counts[i]!);
      average = keep * average + (1 - keep) * value;
      seen = keep * seen + (1 - keep);
    }
    found[i] = seen > 0 ? average / seen : NaN;
  }
  return found;
}
