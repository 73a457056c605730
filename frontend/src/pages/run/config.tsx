/** The config of a run: key by key with where each value came from, as a text, and the files it was given as. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { api, data, type Schema } from "../../api/client";
import { Button } from "../../parts/button";
import { Code } from "../../parts/code";
import { copyText } from "../../parts/copy";
import { Empty, Failure } from "../../parts/failure";
import { Icon } from "../../parts/icons";
import { say } from "../../parts/toast";
import { useShared } from "../../state/site";
import type { TabProps } from "./tab";
import styles from "./run.module.css";

type Row = Schema["ConfigRow"];

const KINDS: Record<string, string> = {
  file: "",
  override: "command line",
  default: "default",
  injected: "injected",
  resolved: "resolved",
};

export function Config({ run, search, onChange }: TabProps) {
  const { project, isDark } = useShared();
  const [filter, setFilter] = useState("");
  const [withDefaults, setWithDefaults] = useState(true);
  const config = useQuery({
    queryKey: ["config", project, run.line.id, run.line.attempts],
    queryFn: () => data(api.GET("/api/runs/{run_id}/config", { params: { path: { run_id: run.line.id }, query: { project } } })),
  });
  const found = config.data;
  const shown = useMemo(() => {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    return (found?.rows ?? []).filter(
      (row) => (withDefaults || !["default", "injected"].includes(row.kind)) && words.every((word) => `${row.key} ${row.value} ${row.origin}`.toLowerCase().includes(word)),
    );
  }, [found, filter, withDefaults]);
  if (config.error) return <Failure error={config.error} />;
  if (!found) return null;
  if (!found.text) return <Empty title="This run has no config.">One started by `assay.start(config=...)` or `assay run CONFIG` has.</Empty>;
  const views = ["keys", "toml", ...Object.keys(found.files)];
  const at = views.includes(search.at ?? "") ? search.at! : "keys";
  return (
    <div className={styles.config}>
      <div className={styles.configBar} role="toolbar" aria-label="Config">
        {views.map((view) => (
          <Button key={view} kind={view === at ? "plain" : "quiet"} aria-pressed={view === at} onClick={() => onChange({ at: view === "keys" ? "" : view }, true)}>
            {view === "keys" ? "Keys" : view === "toml" ? "As TOML" : view}
          </Button>
        ))}
        <span className={styles.grow} />
        {at === "keys" && (
          <label className={styles.check}>
            <input type="checkbox" checked={withDefaults} onChange={(event) => setWithDefaults(event.target.checked)} /> defaults
          </label>
        )}
        {at === "keys" && (
          <div className={styles.search}>
            <Icon name="search" size={14} />
            <input value={filter} placeholder="filter keys" aria-label="Filter keys" onChange={(event) => setFilter(event.target.value)} />
          </div>
        )}
        <Button icon="copy" onClick={() => void copyText(at in found.files ? found.files[at]! : found.text).then((isDone) => isDone && say("The config is copied."))}>
          Copy
        </Button>
      </div>
      {found.problem && <Failure error={found.problem} title="The config is damaged." />}
      {at === "keys" ? (
        <div className={styles.scroll}>
          <Tree rows={shown} />
          {shown.length === 0 && <p className={styles.none}>No key is like that.</p>}
        </div>
      ) : (
        <Code text={at === "toml" ? found.text : found.files[at]!} path={at === "toml" ? "config.toml" : at} isDark={isDark} />
      )}
    </div>
  );
}

/** Keys under their tables. */
function Tree({ rows }: { rows: readonly Row[] }) {
  const sections = useMemo(() => {
    const found = new Map<string, Row[]>();
    for (const row of rows) {
      const cut = row.key.lastIndexOf(".");
      const name = cut < 0 ? "" : row.key.slice(0, cut);
      found.set(name, [...(found.get(name) ?? []), row]);
    }
    return [...found].sort(([a], [b]) => Number(a !== "") - Number(b !== ""));
  }, [rows]);
  return (
    <table className={styles.keys}>
      <thead className="sr-only">
        <tr>
          <th>key</th>
          <th>value</th>
          <th>origin</th>
        </tr>
      </thead>
      {sections.map(([name, inside]) => (
        <tbody key={name}>
          {name && (
            <tr className={styles.keySection}>
              <th colSpan={3} scope="rowgroup">
                {name}
              </th>
            </tr>
          )}
          {inside.map((row) => (
            <tr key={row.key} data-kind={row.kind}>
              <td>{name ? row.key.slice(name.length + 1) : row.key}</td>
              <td title={row.value}>
                <code>{row.value}</code>
              </td>
              <td title={row.origin}>
                {KINDS[row.kind] && <span className={styles.kind}>{KINDS[row.kind]}</span>}
                {row.kind !== "override" && <span className="quiet"> {row.origin}</span>}
              </td>
            </tr>
          ))}
        </tbody>
      ))}
    </table>
  );
}
