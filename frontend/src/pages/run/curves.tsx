/** All curves of one run. */
import { useMemo } from "react";
import { AxisBar } from "../../chart/axisbar";
import { layoutOf, type Layout } from "../../chart/layout";
import { Panels } from "../../chart/panels";
import { Empty } from "../../parts/failure";
import { parseZoom, showZoom } from "../../state/address";
import { useKept } from "../../state/local";
import { useRunMarks } from "../../state/marks";
import { useShared } from "../../state/site";
import { useStable } from "../../state/stable";
import type { TabProps } from "./run";
import styles from "./run.module.css";

export function Curves({ run, search, onChange }: TabProps) {
  const { project } = useShared();
  const [layout, setLayout] = useKept<Layout>(`layout.${project}`, layoutOf(null));
  const metrics = useStable(useMemo(() => run.metrics.map((metric) => metric.name).sort(), [run.metrics]));
  const runs = useStable([{ id: run.line.id, label: run.line.tag || run.line.id }]);
  const zoom = useMemo(() => parseZoom(search.z), [search.z]);
  const axis = useMemo(() => ({ x: search.x ?? "", logX: search.logx ?? false, smooth: search.smooth ?? 0 }), [search.x, search.logx, search.smooth]);
  const marks = useRunMarks(run.line.id);
  return (
    <div className={styles.curves}>
      <div className={styles.curvesBar}>
        <AxisBar
          axis={axis}
          zoom={zoom}
          filter={search.p ?? ""}
          metrics={metrics}
          onAxis={(changes) => onChange(changes, true)}
          onZoom={(fresh) => onChange({ z: showZoom(fresh) })}
          onFilter={(p) => onChange({ p }, true)}
          onPair={(pair) => setLayout({ ...layout, pairs: [...layout.pairs, pair] })}
        />
      </div>
      <div className={styles.scroll}>
        {metrics.length === 0 ? (
          <Empty title="Nothing was logged yet.">The first points come here by themselves.</Empty>
        ) : (
          <Panels
            runs={runs}
            metrics={metrics}
            axis={axis}
            zoom={zoom}
            filter={search.p ?? ""}
            layout={layout}
            marks={marks}
            place={`run-${run.line.id}`}
            onZoom={(fresh) => onChange({ z: showZoom(fresh) })}
            onLayout={setLayout}
          />
        )}
      </div>
    </div>
  );
}
