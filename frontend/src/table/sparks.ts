/** The small curves in the rows of the table. */
import { useCallback, useEffect, useState, useSyncExternalStore } from "react";
import type { RunLine } from "../api/client";
import type { Curve } from "../api/curves";
import { Sheet } from "../chart/sheets";
import type { Rows } from "../state/rows";
import { useLive } from "../state/site";

/** Return what finds the small curve of a run: that of its best metric. */
export function useSparks(rows: Rows, first: number, last: number, project: string, isShown: boolean): (run: RunLine) => Curve | undefined {
  const [sheet] = useState(() => new Sheet({ project, x: "", low: null, high: null, points: 24, logx: false, branches: false, smooth: 0, means: true }));
  const version = useSyncExternalStore(sheet.watch, sheet.snapshot);
  const rowsVersion = rows.snapshotVersion;
  useEffect(() => {
    if (!isShown) return;
    const byMetric = new Map<string, string[]>();
    for (let index = first; index <= last; index++) {
      const line = rows.line(index);
      if (line?.kind !== "run" || !line.run.best) continue;
      const ids = byMetric.get(line.run.best.metric) ?? [];
      ids.push(line.run.id);
      byMetric.set(line.run.best.metric, ids);
    }
    // While somebody scrolls fast the curves of what flies by are of no use.
    const timer = setTimeout(() => {
      for (const [metric, ids] of byMetric) sheet.need(ids, metric);
    }, 60);
    return () => clearTimeout(timer);
  }, [sheet, rows, rowsVersion, first, last, isShown]);
  useLive((event) => {
    if (event.changed?.length) sheet.forget(event.changed);
  });
  return useCallback(
    (run) => (run.best ? sheet.curve(run.id, run.best.metric)?.[0] : undefined),
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the sheet changes in place, which the version says
    [sheet, version],
  );
}
