/** Axes of the parameter view, and what a brush chooses. */
import { describe, expect, it } from "vitest";
import { brushed, parseBrush, scaleOf, shadeOf, showBrush } from "./scale";

describe("an axis", () => {
  it("lays numbers out between the least and the greatest", () => {
    const scale = scaleOf("width", [32, 64, 48, null]);
    expect([32, 64, 48, null].map(scale.place)).toEqual([0, 1, 0.5, null]);
    expect(scale.kind).toBe("number");
  });

  it("lays numbers of several powers out by their logarithm", () => {
    const scale = scaleOf("lr", [1e-4, 1e-2]);
    expect(scale.kind).toBe("log");
    expect(scale.place(1e-3)).toBeCloseTo(0.5);
  });

  it("has the values themselves as ticks where they are few and lie apart", () => {
    expect(scaleOf("seed", [2, 0, 1, 0]).ticks.map((tick) => tick.text)).toEqual(["0", "1", "2"]);
    expect(scaleOf("lr", [1e-4, 3e-4, 1e-2]).ticks).toHaveLength(3);
    expect(scaleOf("lr", [1, 2, 100, 1000]).ticks.map((tick) => tick.at)).toEqual([0, expect.closeTo(0.1), expect.closeTo(0.667, 2), 1]);
    expect(scaleOf("width", [1, 2, 100]).ticks).toHaveLength(3);
    expect(scaleOf("loss", [0, 0.001, 1]).ticks).toHaveLength(5);
  });

  it("gives each text a place of its own, numbers in texts in their order", () => {
    const scale = scaleOf("model", ["b10", "b9", "b10"]);
    expect(["b9", "b10"].map(scale.place)).toEqual([0.25, 0.75]);
    expect(scale.place("b11")).toBeNull();
  });

  it("has no place for what is no finite number", () => {
    const scale = scaleOf("loss", [1, 2, NaN, Infinity]);
    expect([NaN, Infinity].map(scale.place)).toEqual([null, null]);
  });

  it("takes columns of many values, and of one", () => {
    const many = Array.from({ length: 200_000 }, (_, index) => index);
    expect(scaleOf("step", many).place(199_999)).toBe(1);
    expect(scaleOf("seed", [3, 3]).place(3)).toBe(0.5);
    expect(scaleOf("none", [null, null]).place(null)).toBeNull();
  });
});

describe("a shade", () => {
  it("is strong for high values, or for low ones where these are good", () => {
    expect([0, 0.5, 1, null].map((at) => shadeOf(at, 8, false))).toEqual([0, 4, 7, 0]);
    expect([0, 0.5, 1, null].map((at) => shadeOf(at, 8, true))).toEqual([7, 4, 0, 0]);
  });
});

describe("a brush", () => {
  const places = new Map([
    ["a", [0, 0.5, 1, null]],
    ["b", [1, 0.5, 0, 0]],
  ]);

  it("chooses the rows that lie in all of them", () => {
    expect(brushed(places, [], 4)).toEqual([0, 1, 2, 3]);
    expect(brushed(places, [{ name: "a", low: 0.4, high: 1 }], 4)).toEqual([1, 2]);
    expect(brushed(places, [{ name: "a", low: 0.4, high: 1 }, { name: "b", low: 0, high: 0.2 }], 4)).toEqual([2]);
  });

  it("of an axis that is not shown chooses nothing", () => {
    expect(brushed(places, [{ name: "c", low: 0.4, high: 1 }], 4)).toHaveLength(4);
  });

  it("comes back from the address as it was, names with @ and : in them too", () => {
    for (const brush of [{ name: "optimizer.lr", low: 0.25, high: 0.5 }, { name: "a@b:c", low: 0, high: 1 }])
      expect(parseBrush(showBrush(brush))).toEqual(brush);
    expect(parseBrush("lr@0.5:0.5")).toBeNull();
    expect(parseBrush("nonsense")).toBeNull();
  });
});
