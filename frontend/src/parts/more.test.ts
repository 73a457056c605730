/** Nothing is cut in silence: each limit of the page is told by `parts/more.tsx`, or is none of what is shown. */
import { globSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { restText } from "./more";

/** Limits that leave nothing out of what is shown, and why. */
const NOTHING_LOST: Record<string, string> = {
  "chart/sheets.ts MOST_METRICS": "metrics of one request; the others come with the next",
  "chart/sheets.ts MOST_AHEAD": "panels whose curves are asked for before they are made",
  "chart/sheets.ts MOST_CHARACTERS": "ids of one request; the others come with the next",
  "chart/layout.ts MOST_OPEN": "panels of sections that are open at first; the head of each counts its own",
  "chart/layout.ts MOST_HEIGHT": "pixels of a panel",
  "pages/parameters/scale.ts MOST_NAMED": "labels of an axis; the hint counts the values without one",
  "pages/parameters/scale.ts MOST_OWN": "values that are their own ticks",
  "pages/parameters/parameters.tsx MOST_AXES": "axes at first; the button counts them and offers all",
  "pages/queue/rerun.tsx MOST_RERUNS": "more are refused, in words",
  "pages/tables/values.ts MOST_FIRST": "columns of a table at first; the table offers all",
  "pages/workspace/workspace.tsx MOST_AUTOMATIC": "runs that are selected unasked; the foot counts them",
  "state/rows.ts MOST_PREFETCHED": "rows that are fetched before they are scrolled to",
};

const root = fileURLToPath(new URL("..", import.meta.url));
const files = globSync("**/*.{ts,tsx}", { cwd: root }).filter((file) => !/\.test\.|schema\.d/.test(file));
const texts = new Map(files.map((file) => [file, readFileSync(root + file, "utf-8")]));

describe("a limit", () => {
  it("is told where it leaves something out, and each is looked at", () => {
    const limits = [...texts].flatMap(([file, text]) => [...text.matchAll(/const (MOST\w*|MAX\w*)\b/g)].map((found) => ({ file, name: found[1]!, text })));
    expect(limits.length).toBeGreaterThan(20);
    for (const { file, name, text } of limits) {
      const isTold = /from "[./]*(parts\/)?more"/.test(text);
      expect(isTold || `${file} ${name}` in NOTHING_LOST, `${file}: ${name} is told by parts/more.tsx, or stands above`).toBe(true);
    }
    const known = new Set(limits.map(({ file, name }) => `${file} ${name}`));
    expect(Object.keys(NOTHING_LOST).filter((each) => !known.has(each))).toEqual([]);
  });

  it("is a constant with a name: no list is cut by a number", () => {
    const TEXTS = /\.(id|commit|gitCommit|configHash|seedlessHash|snapshot)\.slice|toISOString|moment\(|verdict\.runs\.slice|\.slice\(0, 1\)/;
    const cut = [...texts].flatMap(([file, text]) => text.split("\n").flatMap((line) => (/\.slice\(0, \d+\)/.test(line) && !TEXTS.test(line) ? [`${file}: ${line.trim()}`] : [])));
    expect(cut).toEqual(["pages/tables/tables.tsx: .slice(0, 64);"]); // the name of a file
  });

  it("says how many are left out, and what shows them", () => {
    expect(restText(1234, "as a table in the menu")).toBe("and 1,234 more: as a table in the menu");
    expect(restText(1, "the tab Curves", "metrics")).toBe("and 1 more metrics: the tab Curves");
  });
});
