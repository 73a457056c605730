/** Lines on a canvas: what a path through very many points holds. */
import { describe, expect, it } from "vitest";
import type { Curve } from "../api/curves";
import { inkOf, Pixels } from "./pixels";
import { drawLine, extent, placesOnLog, valueAt, type Line } from "./drawing";

type Point = [number, number];

/** A canvas that keeps the points of each outline that is filled. */
function canvas() {
  const outlines: Point[][] = [];
  const to = {
    lineWidth: 1,
    fillStyle: "",
    beginPath: () => outlines.splice(0),
    moveTo: (x: number, y: number) => outlines.push([[x, y]]),
    lineTo: (x: number, y: number) => outlines.at(-1)!.push([x, y]),
    rect: (x: number, y: number, width: number, height: number) => outlines.push([[x, y], [x + width, y + height]]),
    closePath: () => undefined,
    fill: () => undefined,
    stroke: () => undefined,
    setLineDash: () => undefined,
  };
  return { to: to as unknown as CanvasRenderingContext2D, outlines };
}

function drawn(lows: number[], highs: number[], pixels: number, crowd: Pixels | null = null): Point[][] {
  const n = lows.length;
  const curve = { xs: Float64Array.from(lows.keys()), lows: Float64Array.from(lows), highs: Float64Array.from(highs), raw: false, ordered: true } as Curve;
  const line = { color: "#0067ad", dash: [], curve, smooth: null, isLeft: false, band: null } as unknown as Line;
  const { to, outlines } = canvas();
  const scales = { x: (value: number) => (value * pixels) / n, y: (value: number) => 100 - value, low: 0, high: n, crowd };
  drawLine(to, line, scales, 1, false);
  return outlines;
}

describe("a dense curve", () => {
  const lows = Array.from({ length: 1000 }, () => 0);
  const highs = Array.from({ length: 1000 }, (_, at) => (at === 567 ? 50 : 1));

  it("keeps the spike of one point among very many, in few points", () => {
    const [outline, ...others] = drawn(lows, highs, 100);
    expect(others).toEqual([]);
    expect(Math.min(...outline!.map(([, y]) => y))).toBeLessThanOrEqual(50);
    expect(outline!.length).toBeLessThan(210);
  });

  it("is broken where there is no number, also for several points", () => {
    const gap = lows.map((low, at) => (at >= 400 && at < 450 ? NaN : low));
    const outlines = drawn(gap, highs, 100);
    expect(outlines).toHaveLength(2);
    expect(Math.max(...outlines[0]!.map(([x]) => x))).toBeLessThan(40);
    expect(Math.min(...outlines[1]!.map(([x]) => x))).toBeGreaterThanOrEqual(45);
  });

  it("has no gap where it jumps", () => {
    const [outline] = drawn(lows.map((_, at) => (at < 500 ? 0 : 90)), lows.map((_, at) => (at < 500 ? 1 : 91)), 100);
    const half = outline!.length / 2;
    const tops = outline!.slice(0, half);
    const bottoms = outline!.slice(half).reverse();
    const touches = tops.slice(1).map(([, top], at) => top <= bottoms[at]![1] && bottoms[at + 1]![1] >= tops[at]![1]);
    expect(touches.every(Boolean)).toBe(true);
  });
});

describe("a dense curve among very many", () => {
  it("is one column a pixel, each as high as its points, and each touches the next", () => {
    const highs = Array.from({ length: 1000 }, (_, at) => (at === 567 ? 50 : 1));
    const lows = highs.map((_, at) => (at < 800 ? 0 : -90));
    const crowd = new Pixels(0, 0, 100, 200);
    expect(drawn(lows, highs, 100, crowd)).toEqual([]);

    const columns = Array.from({ length: 100 }, (_, x) =>
      Array.from({ length: 200 }, (_, y) => y).filter((y) => crowd.bytes[4 * (100 * y + x) + 3]! > 0),
    );
    columns.forEach((ys, at) => {
      expect(ys).toEqual(Array.from({ length: ys.length }, (_, i) => ys[0]! + i));
      expect(ys[0]).toBe(at === 56 ? 49 : 98);
      expect(ys.at(-1)).toBe(at < 80 ? 100 : 190);
    });
  });

  it("covers pixels by as much as it takes of them, over what was drawn before", () => {
    const crowd = new Pixels(10, 20, 2, 3);
    crowd.fill(10, 11, 20.25, 22.5, inkOf("#ff0000"));
    crowd.fill(10, 11, 20.75, 21, inkOf("#0000ff"));
    crowd.fill(8, 99, 22.75, 99, inkOf("#00ff00"));

    const at = (x: number, y: number) => [...crowd.bytes.subarray(4 * (2 * y + x), 4 * (2 * y + x) + 4)];
    expect(at(0, 1)).toEqual([255, 0, 0, 255]);
    expect(at(0, 0)).toEqual([176, 0, 79, 207]);
    expect(at(0, 2)).toEqual([153, 102, 0, 160]);
    expect([at(1, 0), at(1, 1), at(1, 2)]).toEqual([[0, 0, 0, 0], [0, 0, 0, 0], [0, 255, 0, 64]]);
  });
});

describe("a curve whose x goes back and forth", () => {
  const xs = Float64Array.from([0, 5, 10, 5.5, 0.5]);
  const ys = Float64Array.from([1, 2, 3, 4, 5]);
  const curve = { xs, values: ys, means: ys, lows: ys, highs: ys, raw: true, ordered: false, first: 0, last: 10 } as unknown as Curve;
  const line = { color: "", dash: [], curve, smooth: null, isLeft: false, band: null } as unknown as Line;

  it("is drawn on each of its passes within a zoom", () => {
    const { to, outlines } = canvas();
    const scales = { x: (value: number) => value, y: (value: number) => value, low: 4, high: 6, crowd: null };
    drawLine(to, line, scales, 1, false);
    expect(outlines.flat()).toEqual([...xs].map((x, at) => [x, ys[at]]));
    expect(extent([line], { low: 4, high: 6 }, { cutOutliers: false, log: false })!.y).toEqual([2, 4]);
  });

  it("has under the cursor the nearest point, of two passes the newer", () => {
    expect(valueAt(line, 9)).toMatchObject({ x: 10, value: 3 });
    expect(valueAt(line, 5.25)).toMatchObject({ x: 5.5, value: 4 });
  });
});

describe("a logarithmic axis", () => {
  it("counts what it has no place for", () => {
    const ys = Float64Array.from([-1, 0, 1, 2]);
    const curve = { xs: Float64Array.from([0, 1, 2, 3]), means: ys, lows: ys, highs: ys, raw: true, ordered: true } as unknown as Curve;
    expect(placesOnLog([{ curve } as Line], null)).toEqual({ hidden: 2, left: 2 });
  });
});
