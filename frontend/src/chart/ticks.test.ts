/** Ticks of axes: each label is right, tells its tick from the next, and is short. */
import { describe, expect, it } from "vitest";
import { labelsOf, linearTicks, ticksOf, type AxisOptions } from "./ticks";

const measure = (label: string) => 6.2 * Math.max(...label.split("\n").map((row) => row.length));
const y: AxisOptions = { kind: "number", isLog: false, room: 150, space: 28, measure: () => 12 };
const x: AxisOptions = { kind: "step", isLog: false, room: 240, space: 40, measure };

/** Labels of values by the ends of an axis of heights. */
const HEIGHTS: [number, number, string[]][] = [
  [0.99991, 0.99999, ["0.99992", "0.99994", "0.99996", "0.99998"]],
  [1000, 1000.001, ["1000", "1000.0002", "1000.0004", "1000.0006", "1000.0008", "1000.001"]],
  [1e9, 1e9 + 1e5, ["1e9", "1.00002e9", "1.00004e9", "1.00006e9", "1.00008e9", "1.0001e9"]],
  [100000, 100001, ["100000", "100000.2", "100000.4", "100000.6", "100000.8", "100001"]],
  [0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"]],
  [0, 1e-20, ["0", "2e-21", "4e-21", "6e-21", "8e-21", "1e-20"]],
  [0, 1e-290, ["0", "2e-291", "4e-291", "6e-291", "8e-291", "1e-290"]],
  [0, 1e300, ["0", "2e299", "4e299", "6e299", "8e299", "1e300"]],
  [-5e-5, 5e-5, ["-4e-5", "-2e-5", "0", "2e-5", "4e-5"]],
  [0, 2500, ["0", "500", "1000", "1500", "2000", "2500"]],
  [-1.7e308, 1.7e308, ["-1e308", "0", "1e308"]],
];

describe("ticks of heights", () => {
  it.each(HEIGHTS)("from %d to %d", (low, high, labels) => {
    expect(ticksOf(low, high, y).labels).toEqual(labels);
  });

  it("are unique, right and within the axis for every size, offset and distance", () => {
    for (const power of [-300, -100, -20, -7, -3, 0, 3, 6, 9, 21, 100, 299]) {
      for (const offset of [0, 1, -1, 1e3, 12345.678]) {
        for (const span of [1, 0.37, 2.2, 0.013]) {
          const low = Number(`${offset}e${power}`);
          const high = low + Number(`${span}e${power}`);
          if (!(high > low)) continue;
          const { values, labels } = ticksOf(low, high, y);
          const name = `${low} to ${high}: ${labels.join(" ")}`;
          expect(new Set(labels).size, name).toBe(values.length);
          expect(values.length, name).toBeGreaterThanOrEqual(2);
          values.forEach((value, at) => expect(Math.abs(Number(labels[at]) - value), name).toBeLessThanOrEqual((high - low) / 1000));
          expect(values.every((value) => value >= low - 1e-5 * (high - low) && value <= high + 1e-5 * (high - low)), name).toBe(true);
        }
      }
    }
  });

  it("are short: no digit of a label can be left out", () => {
    for (const [low, high] of HEIGHTS) {
      const { values, step } = linearTicks(low, high, 5);
      labelsOf(values, step).forEach((label, at) => {
        const mantissa = /\.(\d+)/.exec(label)?.[1];
        if (!mantissa) return;
        const shorter = label.replace(`.${mantissa}`, mantissa.length > 1 ? `.${mantissa.slice(0, -1)}` : "");
        expect(Math.abs(Number(shorter) - values[at]!), label).toBeGreaterThan(step / 1000);
      });
    }
  });

  it("of a logarithm are powers, with 2 and 5 times these where there is room", () => {
    const log = { ...y, isLog: true };
    expect(ticksOf(1e-3, 1e-2, log).labels).toEqual(["0.001", "0.002", "0.005", "0.01"]);
    expect(ticksOf(1e-300, 1e300, log).labels).toHaveLength(5);
    expect(ticksOf(1e-3, 1e1, log).labels).toEqual(["0.001", "0.01", "0.1", "1", "10"]);
    expect(new Set(ticksOf(0.5, 0.52, log).labels).size).toBeGreaterThan(1);
  });
});

describe("ticks of steps", () => {
  it.each<[number, number, string[]]>([
    [0, 100, ["0", "20", "40", "60", "80", "100"]],
    [10, 12.5, ["10", "11", "12"]],
    [10.2, 10.8, []],
    [0, 20_000, ["0", "5k", "10k", "15k", "20k"]],
    [0, 4_000_000, ["0", "1M", "2M", "3M", "4M"]],
    [1e9, 1e9 + 100, ["1000000000", "1000000050", "1000000100"]],
  ])("are whole: from %d to %d", (low, high, labels) => {
    expect(ticksOf(low, high, x).labels).toEqual(labels);
  });

  it("never reach into each other", () => {
    for (const [low, high] of [[0, 100], [1e9, 1e9 + 100], [123_456_789, 123_456_799], [0, 1e12]] as const) {
      const { values, labels } = ticksOf(low, high, x);
      values.slice(1).forEach((value, at) => {
        const apart = ((value - values[at]!) * x.room) / (high - low);
        expect(apart).toBeGreaterThan((measure(labels[at]!) + measure(labels[at + 1]!)) / 2);
      });
    }
  });
});

describe("ticks of time", () => {
  const noon = new Date(2026, 10, 29, 12, 0, 0).getTime() / 1000;
  const clock: AxisOptions = { ...x, kind: "time" };

  it("are times of day over the date, which stands where a day begins", () => {
    expect(ticksOf(noon, noon + 7200, clock).labels).toEqual(["12:00\n2026-11-29", "12:30", "13:00", "13:30", "14:00"]);
    expect(ticksOf(noon, noon + 86_400, clock).labels).toEqual(["12:00\n2026-11-29", "18:00", "00:00\n2026-11-30", "06:00", "12:00"]);
    expect(ticksOf(noon, noon + 4, clock).labels).toEqual(["12:00:00\n2026-11-29", "12:00:02", "12:00:04"]);
    expect(ticksOf(noon - 43_200, noon - 43_200 + 20 * 86_400, clock).labels).toEqual(["2026-12-03", "2026-12-13"]);
  });

  it("since the start say all their units", () => {
    const elapsed: AxisOptions = { ...x, kind: "elapsed" };
    expect(ticksOf(0, 60, elapsed).labels).toEqual(["0 s", "10 s", "20 s", "30 s", "40 s", "50 s", "1 min"]);
    expect(ticksOf(0, 0.01, elapsed).labels).toEqual(["0 s", "0.005 s", "0.01 s"]);
    expect(ticksOf(86_400, 86_400 + 7200, elapsed).labels).toEqual(["1 d", "1 d 1 h", "1 d 2 h"]);
  });
});
