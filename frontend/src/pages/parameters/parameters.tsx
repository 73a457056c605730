/** The parameter view: which keys of the configs a metric depends on, over all runs that are asked for. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useMemo } from "react";
import { api, ApiError, data, type Schema } from "../../api/client";
import { columnsQuery } from "../../api/queries";
import { Button } from "../../parts/button";
import { Empty, Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { Icon } from "../../parts/icons";
import { Rest, useLimited } from "../../parts/more";
import { Picker } from "../../parts/picker";
import { useShortcuts } from "../../parts/shortcuts";
import type { ParametersSearch } from "../../state/address";
import { cell, count, isLongInteger, whole } from "../../state/format";
import { useShared } from "../../state/site";
import { Filter } from "../workspace/filter";
import { Parallel } from "./parallel";
import { brushed, parseBrush, scaleOf, showBrush, type Brush, type Scale, type Value } from "./scale";
import { Scatter } from "./scatter";
import styles from "./parameters.module.css";

const MOST_AXES = 6;
const MOST_LISTED = 20;
/** An address of more ids than these is too long for a server. */
const MOST_LINKED = 1000;

export function ParametersPage() {
  const search = useSearch({ from: "/parameters" });
  const { project, isDark } = useShared();
  const navigate = useNavigate({ from: "/parameters" });
  const change = useCallback(
    (changes: Partial<ParametersSearch>, stays = false) =>
      void navigate({ to: "/parameters", search: (before: ParametersSearch) => ({ ...before, ...changes }), replace: stays }),
    [navigate],
  );
  const names = useQuery(columnsQuery(project));
  const metrics = names.data?.metrics ?? [];
  const modes = names.data?.best ?? {};
  const metric = search.m ?? Object.keys(modes).find((name) => metrics.includes(name)) ?? metrics.find((name) => name.startsWith("valid/")) ?? metrics[0] ?? "";
  const where = search.w ?? "";
  const importance = useQuery({
    queryKey: ["importance", project, where, metric],
    queryFn: () => data(api.GET("/api/importance", { params: { query: { project, where, metric } } })),
    enabled: metric !== "",
    placeholderData: (before) => before,
  });
  const varying = importance.data?.keys.map((each) => each.key) ?? [];
  const keys = search.k?.length ? search.k : varying.slice(0, MOST_AXES);
  const columns = metric ? [...keys.filter((key) => key !== metric), metric] : [];
  const values = useQuery({
    queryKey: ["values", project, where, columns.join("\n")],
    queryFn: () => data(api.GET("/api/values", { params: { query: { project, where, column: columns } } })),
    enabled: columns.length > 0 && importance.data !== undefined,
    placeholderData: (before) => before,
  });
  useShortcuts([
    { keys: "escape", text: "Choose all runs", run: () => change({ b: [] }) },
  ]);
  const error = [importance.error, values.error].find((each) => each instanceof ApiError) ?? null;
  return (
    <>
      <Head page="parameters" title="Parameters">
        <Filter value={where} error={error} names={names.data} onChange={(w, stays) => change({ w }, stays)} />
      </Head>
      <main id="main" className={styles.page}>
        <div className={styles.inner}>
          <div className={styles.bar}>
            <h1>Parameters</h1>
            <Picker
              trigger={
                <Button kind="quiet">
                  <span className="quiet">metric</span> {metric || "none"} <Icon name="chevron" size={12} />
                </Button>
              }
              label="Metric"
              placeholder="metric"
              choices={metrics.map((value) => ({ value }))}
              onChoose={(m) => change({ m })}
            />
            <Picker
              trigger={
                <Button kind="quiet">
                  <span className="quiet">axes</span> {keys.length} <Icon name="chevron" size={12} />
                </Button>
              }
              label="Axes"
              placeholder="config key, metric"
              choices={[...(names.data?.config ?? []), ...metrics].map((value) => ({ value }))}
              chosen={new Set(keys)}
              stays
              onChoose={(name) => change({ k: keys.includes(name) ? keys.filter((key) => key !== name) : [...keys, name] }, true)}
            />
          </div>
          {error && !values.data && !error.isOfFilter && <Failure error={error} />}
          {names.data && !metric && (
            <Empty title="No run has logged a metric yet.">
              <code>assay run CONFIG</code>
            </Empty>
          )}
          {importance.data && !importance.data.keys.length && (
            <Empty title="No key differs among these runs.">
              Runs with other values make this page: <code>assay run CONFIG optimizer.lr=0.1,0.01</code>
            </Empty>
          )}
          {values.data && importance.data && importance.data.keys.length > 0 && (
            <Views facts={values.data} importance={importance.data} metric={metric} isLow={modes[metric] === "min"} keys={keys} search={search} isDark={isDark} project={project} onChange={change} />
          )}
        </div>
      </main>
    </>
  );
}

interface ViewsProps {
  facts: Schema["ValuesFacts"];
  importance: Schema["Importances"];
  metric: string;
  /** Whether the runs call small values of the metric good. */
  isLow: boolean;
  keys: readonly string[];
  search: ParametersSearch;
  isDark: boolean;
  project: string;
  onChange: (changes: Partial<ParametersSearch>, stays?: boolean) => void;
}

function Views({ facts, importance, metric, isLow, keys, search, isDark, project, onChange }: ViewsProps) {
  const scales = useMemo(
    () => [...keys.filter((key) => key !== metric), metric].filter((name) => facts.columns[name]).map((name) => scaleOf(name, valuesOf(facts, name))),
    [facts, keys, metric],
  );
  const places = useMemo(() => new Map(scales.map((scale) => [scale.name, valuesOf(facts, scale.name).map(scale.place)])), [facts, scales]);
  const brushes = useMemo(() => (search.b ?? []).map(parseBrush).filter((each): each is Brush => each !== null), [search.b]);
  const chosen = useMemo(() => brushed(places, brushes, facts.ids.length), [places, brushes, facts.ids.length]);
  const brush = (name: string, range: { low: number; high: number } | null) => {
    const others = brushes.filter((each) => each.name !== name);
    onChange({ b: [...others, ...(range ? [{ name, ...range }] : [])].map(showBrush) });
  };
  const target = places.get(metric) ?? [];
  const having = chosen.filter((row) => (target[row] ?? null) !== null).length;
  const unnamed = scales.filter((scale) => scale.unnamed > 0);
  const y = scales.find((scale) => scale.name === metric);
  const x = scales.find((scale) => scale.name === search.x && scale.name !== metric) ?? scales.find((scale) => scale.name !== metric);
  return (
    <>
      <section aria-label="Parallel coordinates" className={styles.card}>
        <Parallel scales={scales} places={places} rows={facts.ids.length} chosen={chosen} brushes={brushes} metric={metric} isLow={isLow} isDark={isDark} onBrush={brush} />
        <p className={styles.hint}>
          {count(chosen.length)} of {count(facts.ids.length)} runs chosen{having < chosen.length && `, ${count(having)} of them have ${metric}`}. Drag on an axis to choose a part of it, click it to choose all; strong lines have {isLow ? "low" : "high"} values of {metric}.
          <Rest count={facts.total - facts.ids.length} of="runs that are not drawn" at="a filter chooses fewer" />
          {unnamed.map(({ name, unnamed: rest }) => (
            <Rest key={name} count={rest} of={`values of ${name} without a label`} at="the table below has them" />
          ))}
        </p>
      </section>
      <div className={styles.two}>
        <Importance facts={importance} shown={x?.name ?? ""} onShow={(name) => onChange({ x: name, ...(!keys.includes(name) && { k: [...keys, name] }) }, true)} />
        {x && y && (
          <section aria-label={`${metric} over ${x.name}`} className={styles.card}>
            <Scatter x={x} y={y} places={places} chosen={chosen} rows={facts.ids.length} isDark={isDark} />
          </section>
        )}
      </div>
      <Chosen facts={facts} scales={scales} chosen={chosen} metric={metric} isLow={isLow} project={project} isAll={!brushes.length} onClear={() => onChange({ b: [] })} />
    </>
  );
}

/** Return the values of a column as an axis has them: integers that came as texts are numbers there. */
function valuesOf(facts: Schema["ValuesFacts"], name: string): Value[] {
  return (facts.columns[name] ?? []).map((value) => (isLongInteger(value) ? Number(value) : value));
}

interface ImportanceProps {
  facts: Schema["Importances"];
  shown: string;
  onShow: (name: string) => void;
}

function Importance({ facts, shown, onShow }: ImportanceProps) {
  const [listed, more] = useLimited(facts.keys, MOST_LISTED);
  return (
    <section aria-label="Importance" className={styles.card}>
      <div className={styles.wide}>
        <table className={styles.table}>
          <thead>
            <tr>
              <th>key</th>
              <th title="Share of the variance of the metric between the values of this key alone, adjusted for their number">η²</th>
              <th title="Spearman's rank correlation with the metric, from -1 to 1">correlation</th>
              <th title="Runs that have the key and the metric">n</th>
              <th>values</th>
            </tr>
          </thead>
          <tbody>
            {listed.map((line) => (
              <tr key={line.key} data-shown={line.key === shown || undefined}>
                <th scope="row">
                  <button type="button" title="Show it in the scatter plot" onClick={() => onShow(line.key)}>
                    {line.key}
                  </button>
                </th>
                <td>
                  <Bar share={line.eta_squared} />
                </td>
                <td>
                  <Bar share={line.correlation} isSigned />
                </td>
                <td>{line.n}</td>
                <td>{line.values}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {more}
      <p className={styles.hint}>
        Of {count(facts.runs)} runs.{" "}
Each key is looked at alone: shares do not add up.{facts.left_out.length > 0 && ` ${count(facts.left_out.length)} keys that most of these runs lack are not ranked.`}
      </p>
    </section>
  );
}

function Bar({ share, isSigned = false }: { share: number | null; isSigned?: boolean }) {
  if (share === null) return <span className="quiet">-</span>;
  const width = Math.min(1, Math.abs(share)) * (isSigned ? 50 : 100);
  const left = isSigned ? (share < 0 ? 50 - width : 50) : 0;
  return (
    <span className={styles.barCell}>
      <span className={styles.track}>
        <span className={styles.fill} data-negative={share < 0 || undefined} style={{ left: `${left}%`, width: `${width}%` }} />
      </span>
      {share.toFixed(2)}
    </span>
  );
}

interface ChosenProps {
  facts: Schema["ValuesFacts"];
  scales: readonly Scale[];
  chosen: readonly number[];
  metric: string;
  isLow: boolean;
  project: string;
  isAll: boolean;
  onClear: () => void;
}

/** The chosen runs as a table, the best of the metric first: what the lines show, for those who cannot see or drag them. */
function Chosen({ facts, scales, chosen, metric, isLow, project, isAll, onClear }: ChosenProps) {
  const ranked = useMemo(() => {
    const target = valuesOf(facts, metric);
    const known = chosen.filter((row) => typeof target[row] === "number");
    const sign = isLow ? 1 : -1;
    return known.sort((a, b) => sign * ((target[a] as number) - (target[b] as number)));
  }, [chosen, facts, metric, isLow]);
  const [listed, more] = useLimited(ranked, MOST_LISTED);
  const ids = chosen.slice(0, MOST_LINKED).map((row) => facts.ids[row]!);
  const search = project ? { project } : {};
  return (
    <section aria-label="Chosen runs" className={styles.card}>
      <div className={styles.bar}>
        <h2>
          {isLow ? "Lowest" : "Highest"} {metric}
        </h2>
        <Link to="/" search={{ ...search, sel: ids.join(",") }}>
          Curves of {count(ids.length)}
        </Link>
        <Rest count={chosen.length - ids.length} at="a brush or a filter chooses fewer" />
        {chosen.length > 1 && chosen.length <= 50 && (
          <Link to="/compare" search={{ ...search, runs: ids.join(",") }}>
            Compare
          </Link>
        )}
        {!isAll && (
          <Button kind="quiet" onClick={onClear}>
            Choose all
          </Button>
        )}
      </div>
      <div className={styles.wide}>
        <table className={styles.table}>
          <thead>
            <tr>
              <th>run</th>
              {[...scales].reverse().map((scale) => (
                <th key={scale.name}>{scale.name}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {listed.map((row) => (
              <tr key={facts.ids[row]}>
                <th scope="row">
                  <Link to="/runs/$id" params={{ id: facts.ids[row]! }} search={search}>
                    {facts.ids[row]}
                  </Link>
                </th>
                {[...scales].reverse().map((scale) => {
                  const value = facts.columns[scale.name]?.[row];
                  return (
                    <td key={scale.name} title={whole(value)}>
                      {cell(value)}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {more}
    </section>
  );
}
