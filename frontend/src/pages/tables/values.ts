/** Columns that a cell of a table can lead to. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { columnsQuery } from "../../api/queries";
import type { Choice } from "../../parts/picker";
import { useShared } from "../../state/site";

const STATISTICS = ["", ".min", ".max", ".mean"];

/** Columns of a new table at first. */
const MOST_FIRST = 3;

export function useValueChoices(): { choices: Choice[]; bests: string[]; isReady: boolean } {
  const { project } = useShared();
  const names = useQuery(columnsQuery(project));
  return useMemo(() => {
    if (!names.data) return { choices: [], bests: [], isReady: names.isError };
    const { metrics, results, config } = names.data;
    const choices = [
      ...metrics.flatMap((name) => STATISTICS.map((statistic) => ({ value: `${name}${statistic}`, kind: "metric" }))),
      ...results.map((value) => ({ value, kind: "result" })),
      ...config.map((value) => ({ value, kind: "config" })),
      ...["best", "duration", "step"].map((value) => ({ value, kind: "" })),
    ];
    return { choices, bests: metrics.filter((name) => /^(valid|test)\//.test(name)).slice(0, MOST_FIRST), isReady: true };
  }, [names.data, names.isError]);
}
