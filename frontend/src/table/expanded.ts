/** Groups that are opened to their runs, inside of the list that they are rows of. */
import { useCallback, useEffect, useMemo, useState } from "react";
import { api, data } from "../api/client";
import { restText } from "../parts/more";
import { complain, say } from "../parts/toast";
import { groupId, type Line, type Rows } from "../state/rows";

export interface Lines {
  total: number | null;
  lineAt: (index: number) => Line | undefined;
  /** Whether the group of a line is open. */
  isOpen: (line: Line) => boolean;
  toggle: (line: Line) => void;
  /** The first and the last row of the server that are among these. */
  within: (first: number, last: number) => [number, number];
}

/** A question of more ids is too long. */
const MOST_INSIDE = 800;

export function useExpanded(rows: Rows, columns: readonly string[], project: string): Lines {
  const [open, setOpen] = useState<ReadonlyMap<string, readonly Line[]>>(new Map());
  const key = JSON.stringify(rows.question);
  useEffect(() => setOpen(new Map()), [key]);
  const version = rows.snapshotVersion;

  // Where the opened groups stand among the rows, in order, with the rows of their runs behind them.
  const places = useMemo(() => {
    const found: { at: number; lines: readonly Line[] }[] = [];
    if (!open.size) return found;
    for (let index = 0; index < Math.min(rows.total ?? 0, 20_000); index++) {
      const line = rows.line(index);
      const lines = line?.kind === "group" ? open.get(groupId(line.group)) : undefined;
      if (lines) found.push({ at: index, lines });
    }
    return found;
    // eslint-disable-next-line react-hooks/exhaustive-deps -- rows change in place, which the version says
  }, [open, rows, version]);

  const lineAt = useCallback(
    (index: number): Line | undefined => {
      let before = 0;
      for (const { at, lines } of places) {
        const begin = at + before + 1;
        if (index < begin) break;
        if (index < begin + lines.length) return lines[index - begin];
        before += lines.length;
      }
      return rows.line(index - before);
    },
    // eslint-disable-next-line react-hooks/exhaustive-deps -- rows change in place, which the version says
    [places, rows, version],
  );
  const toggle = useCallback(
    (line: Line) => {
      if (line.kind !== "group") return;
      const id = groupId(line.group);
      if (open.has(id)) {
        setOpen(new Map([...open].filter(([each]) => each !== id)));
        return;
      }
      const where = line.group.ids.slice(0, MOST_INSIDE).map((each) => `id = "${each}"`).join(" or ");
      const rest = line.group.ids.length - MOST_INSIDE;
      if (rest > 0) say(restText(rest, "a filter chooses fewer", "runs of the group"));
      data(api.GET("/api/runs", { params: { query: { project, where, column: [...columns], limit: MOST_INSIDE, archived: true, tests: true } } }))
        .then((found) => setOpen((before) => new Map([...before, [id, found.rows.map((run): Line => ({ kind: "run", run, isInside: true }))]])))
        .catch(complain);
    },
    [open, columns, project],
  );
  return useMemo(() => {
    const more = places.reduce((sum, { lines }) => sum + lines.length, 0);
    return {
      total: rows.total === null ? null : rows.total + more,
      lineAt,
      isOpen: (line) => line.kind === "group" && open.has(groupId(line.group)),
      toggle,
      within: (first, last) => [Math.max(0, first - more), last],
    };
    // eslint-disable-next-line react-hooks/exhaustive-deps -- rows change in place, which the version says
  }, [rows, version, places, lineAt, open, toggle]);
}
