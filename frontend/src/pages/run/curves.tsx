/** All curves of one run. */
import { useMemo } from "react";
import { AxisBar } from "../../chart/axisbar";
import { Panels } from "../../chart/panels";
import { useCharts, useLayout } from "../../chart/use-charts";
import { Empty } from "../../parts/failure";
import { useStyles } from "../../state/colors";
import { useRunMarks } from "../../state/marks";
import { useShared } from "../../state/site";
import { useStable } from "../../state/stable";
import type { TabProps } from "./tab";
import styles from "./run.module.css";

export function Curves({ run, search, onChange }: TabProps) {
  const metrics = useStable(useMemo(() => run.metrics.map((metric) => metric.name).sort(), [run.metrics]));
  const runs = useStable([{ id: run.line.id, label: run.line.tag || run.line.id }]);
  const looks = useStyles(runs, useShared().isDark);
  const charts = useCharts(search, onChange, useLayout(), metrics);
  const marks = useRunMarks(run.line.id);
  return (
    <div className={styles.curves}>
      <div className={styles.curvesBar}>
        <AxisBar {...charts.bar} />
      </div>
      <div className={styles.scroll}>
        {metrics.length === 0 ? (
          <Empty title="Nothing was logged yet.">The first points come here by themselves.</Empty>
        ) : (
          <Panels {...charts.panels} runs={runs} looks={looks} marks={marks} place={`run-${run.line.id}`} />
        )}
      </div>
    </div>
  );
}
