/** All result tables of the project, and the making of a new one. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState, type SyntheticEvent } from "react";
import { api, ApiError, data } from "../../api/client";
import { Button, IconButton } from "../../parts/button";
import { Dialog } from "../../parts/dialog";
import { Empty, Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { Icon } from "../../parts/icons";
import { Picker } from "../../parts/picker";
import { age, count, moment } from "../../state/format";
import { useNow, useShared } from "../../state/site";
import { useValueChoices } from "./values";
import styles from "./tables.module.css";

export function TablesPage() {
  const { from } = useSearch({ from: "/tables" });
  const { project, facts } = useShared();
  const navigate = useNavigate();
  const tables = useQuery({ queryKey: ["tables", project], queryFn: () => data(api.GET("/api/tables", { params: { query: { project } } })), staleTime: 0 });
  const now = useNow(30);
  const [isMaking, setMaking] = useState(false);
  const runs = (from ?? "").split(",").filter(Boolean);
  const search = project ? { project } : {};
  return (
    <>
      <Head page="tables" title="Tables" />
      <main id="main" className={styles.page}>
        <div className={styles.inner}>
          <div className={styles.bar}>
            <h1>Tables</h1>
            <span className={styles.grow} />
            {!facts.isReadOnly && (
              <Button kind="primary" icon="plus" onClick={() => setMaking(true)}>
                New table
              </Button>
            )}
          </div>
          {tables.error && <Failure error={tables.error} />}
          {tables.data?.length === 0 && (
            <Empty title="There is no table yet.">
              Select runs, then “New table”; or in a terminal:
              <code>assay table set NAME ROW COLUMN VALUE --where EXPR</code>
            </Empty>
          )}
          {tables.data && tables.data.length > 0 && (
            <table className={styles.list}>
              <thead>
                <tr>
                  <th>table</th>
                  <th className="number">rows</th>
                  <th className="number">columns</th>
                  <th>changed</th>
                  <th />
                </tr>
              </thead>
              <tbody>
                {tables.data.map((each) => (
                  <tr key={each.name}>
                    <td>
                      <Link to="/tables/$name" params={{ name: each.name }} search={search}>
                        {each.title}
                      </Link>
                      {each.title !== each.name && <code className={styles.name}>{each.name}</code>}
                    </td>
                    <td className="number">{count(each.rows)}</td>
                    <td className="number">{count(each.columns)}</td>
                    <td title={moment(each.changed)}>{age(each.changed, now)}</td>
                    <td>
                      {each.problem ? (
                        <span className={styles.problem} title={each.problem}>
                          <Icon name="warning" size={14} /> cannot be read
                        </span>
                      ) : (
                        each.stale > 0 && (
                          <span className={styles.stale}>
                            <Icon name="history" size={14} /> {count(each.stale)} stale
                          </span>
                        )
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </div>
      </main>
      {(isMaking || runs.length > 0) && (
        <NewTable
          runs={runs}
          onClose={() => {
            setMaking(false);
            if (runs.length) void navigate({ to: "/tables", search, replace: true });
          }}
        />
      )}
    </>
  );
}

function NewTable({ runs, onClose }: { runs: readonly string[]; onClose: () => void }) {
  const { project } = useShared();
  const navigate = useNavigate();
  const client = useQueryClient();
  const { choices, bests, isReady } = useValueChoices();
  const [title, setTitle] = useState("");
  const [where, setWhere] = useState("");
  const [chosen, setChosen] = useState<string[] | null>(null);
  const [isGrouped, setGrouped] = useState(runs.length > 1);
  const [error, setError] = useState<unknown>(null);
  const columns = chosen ?? bests;
  const name = nameOf(title);
  const make = async (event: SyntheticEvent) => {
    event.preventDefault();
    if (!name || !isReady) return;
    try {
      await data(
        api.POST("/api/tables", {
          params: { query: { project } },
          body: { name, title: title.trim(), columns, where: runs.length ? "" : where, runs: [...runs], group: isGrouped },
        }),
      );
      void client.invalidateQueries({ queryKey: ["tables", project] });
      void navigate({ to: "/tables/$name", params: { name }, search: project ? { project } : {} });
    } catch (refusal) {
      setError(refusal);
    }
  };
  return (
    <Dialog title={runs.length ? `New table of ${count(runs.length)} ${runs.length === 1 ? "run" : "runs"}` : "New table"} isOpen onClose={onClose}>
      <form className={styles.form} onSubmit={(event) => void make(event)}>
        <label>
          <span>Title</span>
          {/* The dialog was opened to type here. */}
          {/* eslint-disable-next-line jsx-a11y/no-autofocus */}
          <input autoFocus value={title} maxLength={200} onChange={(event) => setTitle(event.target.value)} />
        </label>
        <p className={styles.hint}>{name ? <code>.assay/tables/{name}.toml</code> : "A file of the project, to be committed with it."}</p>
        {runs.length === 0 && (
          <label>
            <span>Rows: the runs with</span>
            <input value={where} placeholder="tag = digits and valid/acc > 0.9; nothing: an empty table" onChange={(event) => setWhere(event.target.value)} />
          </label>
        )}
        <label className={styles.check}>
          <input type="checkbox" checked={isGrouped} onChange={(event) => setGrouped(event.target.checked)} /> One row for runs that differ in the seed alone: mean ± deviation
        </label>
        <div>
          <span className={styles.label}>Columns</span>
          <div className={styles.chips}>
            {columns.map((each) => (
              <span key={each} className={styles.chip}>
                <code>{each}</code>
                <IconButton icon="cross" size={12} label={`Without ${each}`} onClick={() => setChosen(columns.filter((other) => other !== each))} />
              </span>
            ))}
            <Picker
              trigger={
                <Button kind="quiet" icon="plus">
                  Add
                </Button>
              }
              label="Columns"
              placeholder="metric, config key, ..."
              choices={choices}
              chosen={new Set(columns)}
              stays
              onChoose={(value) => setChosen(columns.includes(value) ? columns.filter((other) => other !== value) : [...columns, value])}
            />
          </div>
        </div>
        {error !== null && <p role="alert" className={styles.problem}>{error instanceof ApiError ? `${error.problem.what} ${error.problem.fix}` : "The table was not made."}</p>}
        <div className={styles.actions}>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" disabled={!name || !isReady}>
            Make the table
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

/** Return the name of a file for a title. */
export function nameOf(title: string): string {
  return title
    .normalize("NFKD")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 64);
}
