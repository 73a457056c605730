/** The page people live in: runs at the left, their curves at the right. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useMemo, useState } from "react";
import { api, data, type RunLine } from "../../api/client";
import { Panels } from "../../chart/panels";
import type { PanelRun } from "../../chart/panel";
import { IconButton } from "../../parts/button";
import { Empty, Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { Picker } from "../../parts/picker";
import { parseColumn, parseZoom, showColumn, showZoom, type ColumnSpec, type WorkspaceSearch, type Zoom } from "../../state/address";
import { count } from "../../state/format";
import { useRows, type Question, type Rows } from "../../state/rows";
import { useLive, useShared } from "../../state/site";
import { DEFAULT_SORT, defaultColumns, FACTS, isFact } from "../../table/columns";
import { idsOf, RunsTable, type Choosing } from "../../table/table";
import { Filter } from "./filter";
import styles from "./workspace.module.css";

const MOST_AUTOMATIC = 20;

export function Workspace() {
  const search = useSearch({ from: "/" });
  const { project, isDark } = useShared();
  const change = useChange();
  const names = useQuery({
    queryKey: ["columns", project],
    queryFn: () => data(api.GET("/api/columns", { params: { query: { project } } })),
  });
  const columns = useMemo(
    () => (search.c?.length ? search.c.map(parseColumn) : defaultColumns(names.data?.varying ?? [])),
    [search.c, names.data?.varying],
  );
  const question: Question = {
    project,
    where: search.w ?? "",
    sort: search.s?.length ? search.s : [DEFAULT_SORT],
    columns: search.g?.length ? columns.map((each) => each.name) : columns.map((each) => each.name).filter((name) => !isFact(name)),
    group: search.g ?? [],
    archived: search.archived ?? false,
    tests: search.tests ?? false,
  };
  const { rows, isOld } = useRows(question);
  useLive((event) => {
    if (event.version !== undefined) rows.refresh();
    if (event.changed?.length) void names.refetch();
  });
  const kinds = useMemo(() => new Map(rows.columns.map((column) => [column.name, column.kind])), [rows.columns]);

  const [cursor, setCursor] = useState(-1);
  const selected = useSelected(rows, search.sel);
  const select = useCallback((ids: readonly string[]) => change({ sel: ids.length ? ids.join(",") : "-" }), [change]);
  const choosing = useChoosing(rows, selected, select, cursor, setCursor);
  const setColumns = useCallback((fresh: ColumnSpec[]) => change({ c: fresh.map(showColumn) }, true), [change]);

  const choices = useMemo(() => {
    const found = names.data;
    if (!found) return [];
    return [
      ...FACTS.map((value) => ({ value: value as string, kind: "" })),
      ...found.metrics.flatMap((value) => [
        { value, kind: "metric" },
        { value: `${value}.min`, kind: "metric" },
        { value: `${value}.max`, kind: "metric" },
        { value: `${value}.mean`, kind: "metric" },
      ]),
      ...found.results.map((value) => ({ value, kind: "result" })),
      ...found.config.map((value) => ({ value, kind: "config" })),
      { value: "note", kind: "" },
      { value: "desc", kind: "" },
    ];
  }, [names.data]);

  return (
    <>
      <Head>
        <Filter value={search.w ?? ""} error={rows.error} names={names.data} onChange={(w) => change({ w })} />
      </Head>
      <main id="main" className={styles.workspace}>
        <div className={styles.runs}>
          {rows.error && !rows.isReady ? (
            <Failure error={rows.error} />
          ) : rows.total === 0 ? (
            <Empty title={search.w ? "No run is like that." : "There are no runs yet."}>
              {!search.w && <code>assay run CONFIG</code>}
            </Empty>
          ) : (
            <RunsTable
              rows={rows}
              isOld={isOld}
              columns={columns}
              kinds={kinds}
              sort={question.sort}
              selected={selected}
              cursor={cursor}
              isDark={isDark}
              project={project}
              choosing={choosing}
              onCursor={setCursor}
              onSort={(name, adds) => change({ s: sorted(search.s ?? [], name, kinds.get(name), adds) })}
              onColumns={setColumns}
              onGroup={(name) => change({ g: [name] })}
              onOpen={() => undefined}
              onColor={() => undefined}
              addColumn={
                <Picker
                  trigger={<IconButton icon="plus" label="Add a column" size={14} />}
                  label="Columns"
                  placeholder="metric, config key, ..."
                  choices={choices}
                  chosen={new Set(columns.map((each) => each.name))}
                  stays
                  onChoose={(name) =>
                    setColumns(columns.some((each) => each.name === name) ? columns.filter((each) => each.name !== name) : [...columns, { name }])
                  }
                />
              }
            />
          )}
          <div className={styles.count} role="status">
            {rows.total === null ? "" : `${count(rows.total)} ${rows.total === 1 ? "run" : "runs"}, ${count(selected.size)} selected`}
          </div>
        </div>
        <div className={styles.panels}>
          <SelectedPanels rows={rows} selected={selected} search={search} onZoom={(zoom) => change({ z: showZoom(zoom) })} />
        </div>
      </main>
    </>
  );
}

function SelectedPanels({ rows, selected, search, onZoom }: { rows: Rows; selected: ReadonlySet<string>; search: WorkspaceSearch; onZoom: (zoom: Zoom | null) => void }) {
  const { project } = useShared();
  const ids = useMemo(() => [...selected].sort(), [selected]);
  const metrics = useQuery({
    queryKey: ["metrics", project, ids.join(",")],
    queryFn: () => data(api.GET("/api/metrics", { params: { query: { project, runs: ids.join(",") } } })),
    placeholderData: (before) => before,
    enabled: ids.length > 0,
  });
  useLive((event) => {
    if (event.changed?.some((id) => selected.has(id))) void metrics.refetch();
  });
  const version = rows.snapshotVersion;
  // eslint-disable-next-line react-hooks/exhaustive-deps -- rows change in place, which the version says
  const tags = useMemo(() => tagsOf(rows), [rows, version]);
  const runs = useStable(ids.map((id): PanelRun => ({ id, label: tags.get(id) ?? id })));
  const zoom = useMemo(() => parseZoom(search.z), [search.z]);
  if (!ids.length) return <Empty title="No run is selected.">Choose some at the left: their curves come here.</Empty>;
  if (metrics.error) return <Failure error={metrics.error} />;
  if (metrics.data?.length === 0) return <Empty title="Nothing was logged yet.">The first points come here by themselves.</Empty>;
  return (
    <Panels
      runs={runs}
      metrics={metrics.data ?? []}
      axis={{ x: search.x ?? "", logX: search.logx ?? false, smooth: search.smooth ?? 0 }}
      zoom={zoom}
      onZoom={onZoom}
      place="workspace"
    />
  );
}

function tagsOf(rows: Rows): Map<string, string> {
  const found = new Map<string, string>();
  for (let index = 0; index < Math.min(rows.total ?? 0, 20_000); index++) {
    const line = rows.line(index);
    if (line?.kind === "run") found.set(line.run.id, line.run.tag ? `${line.run.tag} ${line.run.id.slice(0, 4)}` : line.run.id);
    else if (line) for (const id of line.group.ids) found.set(id, `${line.group.newest.tag} ${id.slice(0, 4)}`);
  }
  return found;
}

/** Return the same object as long as it says the same. */
export function useStable<T>(value: T): T {
  const key = JSON.stringify(value);
  // eslint-disable-next-line react-hooks/exhaustive-deps -- the key says all of the value
  return useMemo(() => value, [key]);
}

/** Return what changes a part of the address: a step that leads back, or the same step when it `stays`. */
function useChange(): (changes: Partial<WorkspaceSearch>, stays?: boolean) => void {
  const navigate = useNavigate({ from: "/" });
  return useCallback(
    (changes, stays = false) => void navigate({ to: "/", search: (before: WorkspaceSearch) => ({ ...before, ...changes }), replace: stays }),
    [navigate],
  );
}

/** Return the selected runs: those of the address, else all that run now, else the newest. */
function useSelected(rows: Rows, text: string | undefined): ReadonlySet<string> {
  const version = rows.snapshotVersion;
  const list = useStable(selectedOf(rows, text, version));
  return useMemo(() => new Set(list), [list]);
}

function selectedOf(rows: Rows, text: string | undefined, _version: number): string[] {
  if (text === "-") return [];
  if (text && text !== "*") return text.split(",");
  const found: string[] = [];
  if (text === "*") {
    for (let index = 0; index < Math.min(rows.total ?? 0, 1000); index++) found.push(...(rows.line(index) ? idsOf(rows.line(index)!) : []));
    return found;
  }
  let newest: RunLine | null = null;
  for (let index = 0; index < Math.min(rows.total ?? 0, 200); index++) {
    const line = rows.line(index);
    if (line?.kind === "group") return [...line.group.ids];
    if (!line) continue;
    if (line.run.status === "running" && found.length < MOST_AUTOMATIC) found.push(line.run.id);
    if (!newest || line.run.created > newest.created) newest = line.run;
  }
  return found.length ? found : newest ? [newest.id] : [];
}

function useChoosing(
  rows: Rows,
  selected: ReadonlySet<string>,
  select: (ids: readonly string[]) => void,
  cursor: number,
  setCursor: (index: number) => void,
): Choosing {
  return useMemo(
    () => ({
      only: (ids, index) => {
        setCursor(index);
        select(ids);
      },
      toggle: (ids, index) => {
        setCursor(index);
        const found = new Set(selected);
        const has = ids.every((id) => found.has(id));
        for (const id of ids) {
          if (has) found.delete(id);
          else found.add(id);
        }
        select([...found]);
      },
      range: (index) => {
        const from = cursor < 0 ? index : cursor;
        const found = new Set(selected);
        for (let at = Math.min(from, index); at <= Math.max(from, index); at++) {
          const line = rows.line(at);
          if (line) for (const id of idsOf(line)) found.add(id);
        }
        select([...found]);
      },
    }),
    [rows, selected, select, cursor, setCursor],
  );
}

/** Return the order after a click on a head: down, up, none for numbers; up, down, none for texts. */
function sorted(before: readonly string[], name: string, kind: string | undefined, adds: boolean): string[] {
  const isText = ["tag", "status", "reason", "id", "labels"].includes(name) || kind === "desc" || kind === "note";
  const steps = isText ? [name, `-${name}`] : [`-${name}`, name];
  const at = before.find((each) => each.replace(/^-/, "") === name);
  const next = at === undefined ? steps[0] : at === steps[0] ? steps[1] : undefined;
  const others = adds ? before.filter((each) => each.replace(/^-/, "") !== name) : [];
  return next ? [...others, next] : [...others];
}
