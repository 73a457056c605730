/** Runs side by side: one sentence, then what differs; what is equal is counted and folded. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useCallback, useMemo, useState, type CSSProperties } from "react";
import { api, data, type Schema } from "../../api/client";
import { AxisBar } from "../../chart/axisbar";
import { Panels } from "../../chart/panels";
import { useCharts, useLayout } from "../../chart/use-charts";
import { Button, IconButton } from "../../parts/button";
import { Empty, Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { Icon } from "../../parts/icons";
import { restText, useLimited } from "../../parts/more";
import { Picker } from "../../parts/picker";
import { useShortcuts } from "../../parts/shortcuts";
import { Stroke } from "../../parts/stroke";
import type { CompareSearch } from "../../state/address";
import { useStyles, type Named, type Style } from "../../state/colors";
import { age, cell, count, duration, number, whole } from "../../state/format";
import { useShared } from "../../state/site";
import { useStable } from "../../state/stable";
import { Spread, Status } from "../../table/cells";
import styles from "./compare.module.css";
import { Divergence } from "./divergence";

const FileDiff = lazy(async () => ({ default: (await import("./file-diff")).FileDiff }));

type Facts = Schema["CompareFacts"];

export function ComparePage() {
  const search = useSearch({ from: "/compare" });
  const { project } = useShared();
  const navigate = useNavigate({ from: "/compare" });
  const change = useCallback(
    (changes: Partial<CompareSearch>, stays = false) => void navigate({ to: "/compare", search: (before: CompareSearch) => ({ ...before, ...changes }), replace: stays }),
    [navigate],
  );
  useShortcuts([{ keys: "escape", text: "Back to the runs", run: () => void navigate({ to: "/", search: { ...(project && { project }), sel: search.runs ?? "" } }) }]);
  const ids = useMemo(() => (search.runs ?? "").split(",").filter(Boolean), [search.runs]);
  const found = useQuery({
    queryKey: ["compare", project, ids.join(","), search.base ?? ""],
    queryFn: () => data(api.GET("/api/compare", { params: { query: { project, runs: ids.join(","), base: search.base ?? "" } } })),
    enabled: ids.length > 1,
    placeholderData: (before) => before,
  });
  return (
    <>
      <Head page="" title="Compare">
        <AddRun ids={ids} onAdd={(id) => change({ runs: [...ids, id].join(",") })} />
      </Head>
      <main id="main" className={styles.page}>
        {ids.length < 2 ? (
          <Empty title="Two runs make a comparison.">
            {ids.length ? "Add another one above." : <Link to="/">Select some in the list of runs, then press c.</Link>}
          </Empty>
        ) : found.error && !found.data ? (
          <Failure error={found.error} />
        ) : (
          found.data && <Whole facts={found.data} search={search} onChange={change} />
        )}
      </main>
    </>
  );
}

function AddRun({ ids, onAdd }: { ids: readonly string[]; onAdd: (id: string) => void }) {
  const { project } = useShared();
  const runs = useQuery({
    queryKey: ["runs-to-compare", project],
    queryFn: () => data(api.GET("/api/runs", { params: { query: { project, limit: 500 } } })),
  });
  const choices = (runs.data?.rows ?? []).filter((run) => !ids.includes(run.id)).map((run) => ({ value: `${run.tag}  ${run.id}`.trim(), kind: age(run.created, Date.now() / 1000) }));
  return (
    <Picker
      trigger={
        <Button kind="quiet" icon="plus">
          Add a run
        </Button>
      }
      label="Runs"
      placeholder="tag or id"
      choices={choices}
      onChoose={(value) => onAdd(value.split(/\s+/).at(-1)!)}
    />
  );
}

function Whole({ facts, search, onChange }: { facts: Facts; search: CompareSearch; onChange: (changes: Partial<CompareSearch>, stays?: boolean) => void }) {
  const runs = facts.runs;
  const drop = (id: string) => onChange({ runs: (search.runs ?? "").split(",").filter((each) => each !== id).join(","), base: search.base === id ? "" : search.base });
  const { isDark } = useShared();
  const named = useStable(runs.map(({ id }) => ({ id, label: facts.names[id] ?? id })));
  const looks = useStyles(named, isDark);
  const style = { "--runs": runs.length } as CSSProperties;
  return (
    <div className={styles.scroll}>
      <p className={styles.sentence}>{facts.sentence || "These runs are the same in everything that was recorded."}</p>
      {facts.warnings.map((warning) => (
        <p key={warning} className={styles.warning}>
          <Icon name="warning" size={14} /> {warning}
        </p>
      ))}
      {facts.gone.length > 0 && (
        <p className={styles.gone} role="alert">
          {facts.gone.join(", ")} {facts.gone.length === 1 ? "is" : "are"} not there any more.
        </p>
      )}
      <Divergence facts={facts} />
      <div className={styles.wide}>
        <table className={styles.table} style={style}>
          <thead>
            <tr>
              <th className={styles.name}>run</th>
              {runs.map((run, at) => (
                <th key={run.id} scope="col">
                  <div className={styles.run}>
                    <Stroke {...looks.get(run.id)!} width={18} />
                    <Link to="/runs/$id" params={{ id: run.id }} className="ellipsis" title={`${facts.names[run.id]}\n${run.tag} ${run.id}`}>
                      {facts.names[run.id] ?? run.id}
                    </Link>
                    <IconButton icon="cross" label={`Leave ${facts.names[run.id] ?? run.id} out`} size={12} onClick={() => drop(run.id)} />
                  </div>
                  <div className={styles.under}>
                    <code>{run.id}</code>
                    {at === 0 ? (
                      <span className={styles.base}>baseline</span>
                    ) : (
                      <button type="button" className={styles.asBase} onClick={() => onChange({ base: run.id })}>
                        as baseline
                      </button>
                    )}
                  </div>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            <Line name="status">
              {runs.map((run) => (
                <td key={run.id}>
                  <Status run={run} />
                </td>
              ))}
            </Line>
            <Line name="steps, duration">
              {runs.map((run) => (
                <td key={run.id}>
                  {count(run.step)}, {duration(run.duration)}
                </td>
              ))}
            </Line>
            <Line name="first different step">
              {facts.partings.map((parting, at) => (
                <td key={at}>
                  {at === 0 ? "" : parting ? (
                    <button type="button" className={styles.asBase} onClick={() => onChange({ z: `${Math.max(0, parting.step - 20)}:${parting.step + 20}` })} title="Show the curves there">
                      {count(parting.step)} <span className="quiet">{parting.metric}</span>
                    </button>
                  ) : (
                    <span className="quiet">none</span>
                  )}
                </td>
              ))}
            </Line>
          </tbody>
          <Keys title="Config" rows={facts.config} equal={facts.equalConfig} count={runs.length} />
          <Keys title="Environment" rows={facts.environment} equal={facts.equalEnvironment} count={runs.length} />
          <Numbers facts={facts} />
        </table>
      </div>
      <Code facts={facts} />
      <Curves facts={facts} runs={named} looks={looks} search={search} onChange={onChange} />
    </div>
  );
}

function Line({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <tr>
      <th scope="row" className={styles.name} title={name}>
        {name}
      </th>
      {children}
    </tr>
  );
}

function SectionLine({ title, rows, equal, count: runs }: { title: string; rows: number; equal: number; count: number }) {
  return (
    <tr className={styles.sectionLine}>
      <th colSpan={runs + 1} scope="rowgroup">
        {title} <span className="quiet">{rows ? `${count(rows)} differ` : "no difference"}{equal > 0 && `, ${count(equal)} equal`}</span>
      </th>
    </tr>
  );
}

const MOST_ROWS = 40;

function Keys({ title, rows, equal, count: runs }: { title: string; rows: Facts["config"]; equal: number; count: number }) {
  const [shown, more] = useLimited(rows, MOST_ROWS);
  return (
    <tbody>
      <SectionLine title={title} rows={rows.length} equal={equal} count={runs} />
      {shown.map((row) => (
        <Line key={row.key} name={row.key}>
          {row.values.map((value, at) => (
            <td key={at} data-differs={at > 0 && value !== row.values[0] ? true : undefined} title={whole(value)}>
              {value === null ? <span className="quiet">-</span> : <code>{cell(value)}</code>}
            </td>
          ))}
        </Line>
      ))}
      {more && (
        <tr>
          <td colSpan={runs + 1}>{more}</td>
        </tr>
      )}
    </tbody>
  );
}

/** Whether a number of any of the runs has more than one seed behind it. */
function hasRepeats(row: Schema["MetricRow"]): boolean {
  return row.groups.some((group) => group !== null && group.count > 1);
}

const COSTS = /^(speed|time|memory)\//;

function Numbers({ facts }: { facts: Facts }) {
  const [withCosts, setCosts] = useState(false);
  const rows = facts.metrics.filter((row) => withCosts || !COSTS.test(row.name));
  const hidden = facts.metrics.length - rows.length;
  const hasTests = facts.repeats.some((repeats) => repeats > 1);
  return (
    <tbody>
      <tr className={styles.sectionLine}>
        <th colSpan={facts.runs.length + 1} scope="rowgroup">
          Numbers{" "}
          <span className="quiet">
            last value, with the difference from the baseline
            {hasTests && "; below it mean ± deviation over the seeds with n, and p of Welch's two-sided test of these means against the baseline's"}
          </span>
        </th>
      </tr>
      {rows.map((row) => (
        <Line key={row.name} name={row.name}>
          {row.summaries.map((value, at) => {
            const base = row.summaries[0]?.last;
            const group = row.groups[at];
            const test = row.tests[at];
            if (!value) return <td key={at} className="quiet">-</td>;
            const difference = at > 0 && typeof value.last === "number" && typeof base === "number" ? value.last - base : null;
            return (
              <td key={at} title={`last ${value.last}, lowest ${value.min}, highest ${value.max}`}>
                {typeof value.last === "number" ? number(value.last) : value.last}
                {difference !== null && difference !== 0 && (
                  <span className={styles.difference}>
                    {" "}
                    {difference > 0 ? "+" : "−"}
                    {number(Math.abs(difference))}
                  </span>
                )}
                {group && hasRepeats(row) && (
                  <div className={styles.group}>
                    <span>
                      <Spread value={group} /> (n = {group.count})
                    </span>
                    {test && (
                      <span title={`Welch's test: difference of the means ${number(test.difference)}, two-sided p = ${test.p}`}>
                        p {test.p < 0.001 ? "< 0.001" : `= ${number(Number(test.p.toPrecision(2)))}`}
                      </span>
                    )}
                  </div>
                )}
              </td>
            );
          })}
        </Line>
      ))}
      {hidden > 0 && (
        <tr>
          <td colSpan={facts.runs.length + 1}>
            <Button kind="quiet" className={styles.more} onClick={() => setCosts(true)}>
              {count(hidden)} of time, speed and memory
            </Button>
          </td>
        </tr>
      )}
    </tbody>
  );
}

const MOST_CHANGES = 3;

function Code({ facts }: { facts: Facts }) {
  const [open, setOpen] = useState<string | null>(null);
  const base = facts.runs[0];
  return (
    <section className={styles.code} aria-label="Code">
      <h2>
        Code{" "}
        <span className="quiet">
          {facts.code.length ? `${count(facts.code.length)} files differ` : facts.codeMissing.length ? "" : "no difference"}
          {facts.equalCode > 0 && `, ${count(facts.equalCode)} equal`}
        </span>
      </h2>
      {facts.codeMissing.length > 0 && <p className="quiet">The code of {facts.codeMissing.join(", ")} is not here.</p>}
      <ul className={styles.files}>
        {facts.code.map((file) => {
          const others = facts.runs.map((run, at) => ({ run, change: file.changes[at] ?? "" })).filter((each) => each.change);
          const isOpen = open === file.path;
          return (
            <li key={file.path}>
              <button type="button" className={styles.file} aria-expanded={isOpen} onClick={() => setOpen(isOpen ? null : file.path)}>
                <Icon name={isOpen ? "chevron" : "right"} size={14} />
                <code>{file.path}</code>
                <span className="quiet">
                  {others.map(({ run, change }) => `${change} in ${facts.names[run.id] ?? run.id}`).slice(0, MOST_CHANGES).join(", ")}
                  {others.length > MOST_CHANGES && `, ${restText(others.length - MOST_CHANGES, "open it")}`}
                </span>
              </button>
              {isOpen && base && (
                <Suspense fallback={null}>
                  <FileDiff base={base} others={others} names={facts.names} path={file.path} />
                </Suspense>
              )}
            </li>
          );
        })}
      </ul>
    </section>
  );
}

function Curves({ facts, runs, looks, search, onChange }: { facts: Facts; runs: readonly Named[]; looks: ReadonlyMap<string, Style>; search: CompareSearch; onChange: (changes: Partial<CompareSearch>, stays?: boolean) => void }) {
  const metrics = useStable(useMemo(() => facts.metrics.map((row) => row.name).sort(), [facts.metrics]));
  const charts = useCharts(search, onChange, useLayout(), metrics);
  return (
    <section aria-label="Curves">
      <div className={styles.curvesBar}>
        <AxisBar {...charts.bar} />
      </div>
      <Panels {...charts.panels} runs={runs} looks={looks} place="compare" />
    </section>
  );
}
