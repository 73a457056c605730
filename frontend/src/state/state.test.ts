/** Logic of the page that needs no browser: addresses, numbers, colours of a terminal. */
import { describe, expect, it } from "vitest";
import { parseColumn, parsePanel, parseSearch, parseZoom, showColumn, showPanel, showZoom, stringifySearch, workspaceSearch } from "./address";
import { fittedWidths } from "../table/columns";
import { chosenStrokes, likedSlot, stylesByValue } from "./colors";
import { EMPTY_LAYOUT, openMetrics } from "../chart/layout";
import { age, bytes, cell, count, duration, isLongInteger, number } from "./format";

describe("the address", () => {
  it("comes back as it was written", () => {
    const search = workspaceSearch(parseSearch("?w=valid/acc+%3E+0.9&s=-loss&s=tag&sel=abc,def&smooth=0.6&z=10:20&hide=runs"));
    expect(workspaceSearch(parseSearch(stringifySearch({ ...search })))).toEqual(search);
    expect(search.w).toBe("valid/acc > 0.9");
    expect(search.s).toEqual(["-loss", "tag"]);
  });

  it("holds nothing that is as it would be without it", () => {
    expect(stringifySearch({ ...workspaceSearch(parseSearch("?w=&smooth=0&archived=0&hide=nonsense&z=5:1")) })).toBe("");
  });

  it("keeps width and pin of a column, and names with the same marks in them", () => {
    for (const text of ["valid/acc@120!", "lr@80", "tag!", "a@b", "loss"]) expect(showColumn(parseColumn(text))).toBe(text);
  });

  it("refuses a zoom that is none", () => {
    expect(parseZoom("3:1")).toBeNull();
    expect(parseZoom("a:b")).toBeNull();
    expect(showZoom(parseZoom("1000:2000"))).toBe("1000:2000");
  });

  it("keeps a zoom into ranges of every size", () => {
    for (const text of ["1e-20:2e-20", "-3e300:1e300", "1000000000:1000000050", "0.99991:0.99993"]) {
      const [low, high] = [parseZoom(text)!, parseZoom(showZoom(parseZoom(text)))!];
      expect(high.low).toBeCloseTo(low.low, 12);
      expect(high.high / low.high).toBeCloseTo(1, 6);
    }
  });

  it("keeps the settings of a panel, whatever it is called", () => {
    for (const text of ["valid/acc@log", "loss@log,cut,0.5:2", "a@b@cut", "loss by a@b@-1e-5:", "x,y@:3"]) {
      const [key, options] = parsePanel(text)!;
      expect(showPanel(key, options)).toBe(text);
    }
    for (const text of ["loss", "loss@", "loss@2:1", "loss@nonsense"]) expect(parsePanel(text)).toBeNull();
    expect(workspaceSearch(parseSearch("?o=loss@log&o=nonsense&big=loss"))).toEqual({ o: ["loss@log"], big: "loss" });
  });
});

describe("colours", () => {
  const runs = Array.from({ length: 20 }, (_, index) => ({ id: `id${index}`, label: `lr=0.${index}` }));
  const looks = (found: ReturnType<typeof chosenStrokes>) => new Map([...found].map(([id, { slot, dash }]) => [id, `${slot} ${dash}`]));

  it("follow the name, whatever the order: eight without two alike, then the same in dashes", () => {
    const found = looks(chosenStrokes(runs, new Map()));
    expect(new Set(found.values()).size).toBe(20);
    expect(looks(chosenStrokes([...runs].reverse(), new Map()))).toEqual(new Map([...found].reverse()));
    expect(new Set([...chosenStrokes(runs.slice(0, 8), new Map()).values()].map((each) => each.slot)).size).toBe(8);
    expect(chosenStrokes(runs.slice(3, 4), new Map()).get("id3")!.slot).toBe(likedSlot("lr=0.3"));
  });

  // The same names and numbers as in tests/query/test_chart.py: a figure has the colours of the page.
  it("are those of a figure", () => {
    const names = ["lr=0.01 width=64", "lr=0.1 width=64", "w\u00f6rter", "\u5b66\u4e60"];
    expect(names.map(likedSlot)).toEqual([0, 2, 0, 3]);
  });

  it("stay when others come", () => {
    const known = new Map([["id0", 3], ["id1", 3]]);
    const found = chosenStrokes(runs.slice(0, 3), known);
    expect([found.get("id0"), found.get("id1")]).toEqual([{ slot: 3, dash: 0 }, { slot: 3, dash: 1 }]);
    expect(found.get("id2")!.slot).not.toBe(3);
  });

  it("of a key are a scale for numbers, and one for each other value", () => {
    const some = runs.slice(0, 4);
    const colors = (values: (string | number | null)[]) =>
      [...stylesByValue(some, Object.fromEntries(some.map(({ id }, at) => [id, values[at] ?? null])), false).values()].map((look) => look.color);
    const [low, middle, high, none] = colors([0.001, 0.01, 0.1, null]);
    expect(new Set([low, middle, high, none]).size).toBe(4);
    const [one, two, three] = colors(["relu", "gelu", "relu", "tanh"]);
    expect([one === three, one === two]).toEqual([true, false]);
    expect(new Set(colors([5, 5, 5, 5])).size).toBe(1);
  });
});

describe("the metrics of open panels", () => {
  const metrics = ["memory/rss", "train/loss", "train/lr", "valid/acc"];

  it("are those whose section is not closed, as its panels are", () => {
    expect(openMetrics(metrics, EMPTY_LAYOUT, "")).toEqual(["train/loss", "train/lr", "valid/acc"]);
    expect(openMetrics(metrics, { ...EMPTY_LAYOUT, closed: { train: true, memory: false } }, "")).toEqual(["valid/acc", "memory/rss"]);
  });

  it("are all that a filter finds, but for panels over a metric of their own", () => {
    const layout = { ...EMPTY_LAYOUT, pairs: [{ x: "train/lr", y: "train/loss" }] };
    expect(openMetrics(metrics, layout, "rss")).toEqual(["memory/rss"]);
    expect(openMetrics(metrics, layout, "loss")).toEqual(["train/loss"]);
  });
});

describe("columns", () => {
  const columns = ["status", "tag", "best", "lr", "width", "duration", "age"].map((name) => ({ name }));
  const sum = (widths: readonly number[]) => widths.reduce((total, width) => total + width, 0);

  it("become a little narrower if all of them then fit", () => {
    const natural = sum(fittedWidths(columns, 2000));
    expect(sum(fittedWidths(columns, natural - 42))).toBeLessThanOrEqual(natural - 42);
    expect(fittedWidths(columns, natural - 42)[0]).toBe(fittedWidths(columns, 2000)[0]);
  });

  it("become as narrow as may be where they would not fit anyhow, but for those that somebody chose", () => {
    expect(fittedWidths(columns, 300)).toEqual(fittedWidths(columns, 400));
    expect(sum(fittedWidths(columns, 300))).toBeLessThan(sum(fittedWidths(columns, 2000)));
    expect(fittedWidths([{ name: "tag", width: 300 }, { name: "age" }], 390)[0]).toBe(300);
    expect(fittedWidths([{ name: "tag", width: 300 }, { name: "age" }], 390, true)[0]).toBe(300);
  });

  it("have room for what opens a group in the first", () => {
    const [status, tag] = fittedWidths(columns, 2000);
    const grouped = fittedWidths(columns, 2000, true);
    expect(grouped[0]).toBeGreaterThan(status!);
    expect(grouped[1]).toBe(tag);
  });
});

describe("numbers", () => {
  it("have four digits that count", () => {
    expect([0.123456, 1234567, 0.00012341, 100000, 0, -0.5].map(number)).toEqual(["0.1235", "1.235e6", "1.234e-4", "100000", "0", "-0.5"]);
    expect([Number.NaN, Infinity, -Infinity, null].map(number)).toEqual(["nan", "inf", "-inf", ""]);
    expect(count(10000)).toBe("10,000");
  });

  it("of more digits than a number holds stay as they came", () => {
    expect(["9007199254740993", "-9007199254740993", "9007199254740991", "1e300", "abc", 5].map(isLongInteger)).toEqual([true, true, false, false, false, false]);
    expect(cell("9007199254740993")).toBe("9007199254740993");
  });

  it("have units", () => {
    expect([0.5, 33, 75, 3700, 90000].map(duration)).toEqual(["0.5 s", "33 s", "1 min 15 s", "1 h 1 min", "1 d 1 h"]);
    expect([12, 1500, 1_234_567, 5e10, 12e14].map(bytes)).toEqual(["12 B", "1.5 kB", "1.23 MB", "50 GB", "1200 TB"]);
    expect(age(0, 90)).toBe("1 min ago");
  });
});
