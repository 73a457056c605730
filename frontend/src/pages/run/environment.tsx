/** What a run ran on and with. */
import { useMemo, useState } from "react";
import { Empty } from "../../parts/failure";
import { Icon } from "../../parts/icons";
import type { TabProps } from "./tab";
import styles from "./run.module.css";

export function Environment({ run }: TabProps) {
  const [filter, setFilter] = useState("");
  const sections = useMemo(() => {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const found = new Map<string, [string, string][]>();
    for (const [key, value] of Object.entries(run.environment)) {
      if (!words.every((word) => `${key} ${value}`.toLowerCase().includes(word))) continue;
      const cut = key.indexOf(".");
      const name = cut < 0 ? "system" : key.slice(0, cut);
      found.set(name, [...(found.get(name) ?? []), [cut < 0 ? key : key.slice(cut + 1), value]]);
    }
    const rank = (name: string) => ["system", "torch", "variables"].indexOf(name);
    return [...found].sort(([a], [b]) => (rank(a) < 0 ? 9 : rank(a)) - (rank(b) < 0 ? 9 : rank(b)));
  }, [run.environment, filter]);
  if (!Object.keys(run.environment).length) return <Empty title="No environment was recorded with this run." />;
  return (
    <div className={styles.block}>
      <div className={styles.search}>
        <Icon name="search" size={14} />
        <input value={filter} placeholder="filter" aria-label="Filter the environment" onChange={(event) => setFilter(event.target.value)} />
      </div>
      <div className={styles.sections}>
        {sections.map(([name, rows]) => (
          <section key={name}>
            <h2>{name}</h2>
            <dl className={styles.pairs}>
              {rows.map(([key, value]) => (
                <div key={key}>
                  <dt title={key}>{key}</dt>
                  <dd title={value}>{value}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      {!sections.length && <p className={styles.none}>Nothing is like that.</p>}
    </div>
  );
}
