/** Logic of the page that needs no browser: addresses, numbers, colours of a terminal. */
import { describe, expect, it } from "vitest";
import { parseColumn, parseSearch, parseZoom, showColumn, showZoom, stringifySearch, workspaceSearch } from "./address";
import { fittedWidths } from "../table/columns";
import { chosenSlots } from "./colors";
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
});

describe("colours", () => {
  const ids = Array.from({ length: 14 }, (_, index) => `run${index}`);

  it("are given in order, the first eight without two alike, and stay", () => {
    const found = chosenSlots(ids, new Map());
    expect([...found.values()]).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5]);
    expect([...chosenSlots(["new", "run3"], found).values()]).toEqual([3, 6]);
    expect(chosenSlots(["new", "run3"], found).get("run3")).toBe(3);
  });

  it("differ for runs that are drawn one after the other", () => {
    const known = new Map<string, number>();
    for (const id of ids.slice(0, 8)) known.set(id, chosenSlots([id], known).get(id)!);
    expect(new Set(known.values()).size).toBe(8);
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

  it("keep their widths where they would not fit anyhow, and those that somebody chose", () => {
    expect(fittedWidths(columns, 300)).toEqual(fittedWidths(columns, 2000));
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
