/** The page people live in: runs at the left, their curves at the right. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useMemo, useRef, useState, type PointerEvent } from "react";
import { api, data, type RunLine, type Schema } from "../../api/client";
import { columnsQuery } from "../../api/queries";
import { AxisBar } from "../../chart/axisbar";
import { openMetrics, type Layout } from "../../chart/layout";
import { Panels } from "../../chart/panels";
import { useCharts, useLayout } from "../../chart/use-charts";
import type { PanelRun } from "../../chart/panel";
import { askForCurves, lookOf } from "../../chart/sheets";
import { Button, IconButton } from "../../parts/button";
import { Empty, Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { Icon } from "../../parts/icons";
import { Menu, MenuCheck, MenuItem, MenuLine } from "../../parts/menu";
import { useActs } from "../../parts/palette";
import { Rest } from "../../parts/more";
import { Picker, type Choice } from "../../parts/picker";
import { useShortcuts } from "../../parts/shortcuts";
import { say } from "../../parts/toast";
import { axisOf, parseColumn, parseZoom, showColumn, type ColumnSpec, type WorkspaceSearch } from "../../state/address";
import { count, isLongInteger } from "../../state/format";
import { useStyles, type Colored, type Style } from "../../state/colors";
import { useKept } from "../../state/local";
import { groupId, idsOf, useRows, type Question, type Rows } from "../../state/rows";
import { useMedia, useShared } from "../../state/site";
import { useRunMarks } from "../../state/marks";
import { useStable } from "../../state/stable";
import { Cards } from "../../table/cards";
import type { ShownName } from "../../table/cells";
import { DEFAULT_SORT, defaultColumns, FACTS, isFact } from "../../table/columns";
import { ColorPicker, type ColorAsked } from "../../table/color-picker";
import { useExpanded } from "../../table/expanded";
import type { Choosing } from "../../table/selecting";
import { RunsTable } from "../../table/table";
import { Acts, MOST_COMPARED, TOO_MANY } from "./acts";
import { Filter } from "./filter";
import { Views } from "./views";
import styles from "./workspace.module.css";

const MOST_AUTOMATIC = 20;
const MOST_DRAWN = 1000;
const NO_METRICS: readonly string[] = [];

export function Workspace() {
  const search = useSearch({ from: "/" });
  const { project, isDark } = useShared();
  const change = useChange();
  const navigate = useNavigate();
  const isNarrow = useMedia("(max-width: 700px)");
  const names = useQuery(columnsQuery(project));
  const isGrouped = (search.g?.length ?? 0) > 0;
  const asked = useMemo(() => search.c?.map(parseColumn) ?? null, [search.c]);
  const question: Question = {
    project,
    where: search.w ?? "",
    sort: search.s?.length ? search.s : [DEFAULT_SORT],
    columns: asked && asked.map((each) => each.name).filter((name) => isGrouped || !isFact(name)),
    group: search.g ?? [],
    archived: search.archived ?? false,
    tests: search.tests ?? false,
  };
  const { rows, isOld, error } = useRows(question);
  const chosen = useStable(rows.columns.map((column) => column.name));
  const columns = useMemo(() => asked ?? defaultColumns(chosen, isGrouped), [asked, chosen, isGrouped]);
  const own = useMemo(() => columns.map((each) => each.name).filter((name) => !isFact(name)), [columns]);
  const kinds = useKinds(rows);
  const lines = useExpanded(rows, chosen, project);

  const [cursor, setCursor] = useState(-1);
  const [colorAsked, setColorAsked] = useState<ColorAsked | null>(null);
  const [layout, setLayout] = useLayout();
  const selected = useSelected(rows, search.sel);
  const drawn = useDrawn(rows, selected, search, isGrouped, layout);
  const looks = useStyles(drawn.runs, isDark, drawn.values);
  const select = useCallback((ids: readonly string[]) => change({ sel: ids.length ? ids.join(",") : "-" }), [change]);
  const choosing = useChoosing(lines.lineAt, selected, select, cursor, setCursor);
  const setColumns = useCallback((fresh: ColumnSpec[]) => change({ c: fresh.map(showColumn) }, true), [change]);
  const open = useCallback(
    (run: RunLine) => void navigate({ to: "/runs/$id", params: { id: run.id }, search: project ? { project } : {} }),
    [navigate, project],
  );
  const choices = useColumnChoices(names.data);
  const hidden = isNarrow ? (search.hide ?? "panels") : search.hide;

  const atCursor = lines.lineAt(cursor);
  const move = (by: number) => setCursor(Math.max(0, Math.min((lines.total ?? 1) - 1, cursor + by)));
  useShortcuts([
    { keys: "j", text: "Next run", run: () => move(1) },
    { keys: "k", text: "Run before", run: () => move(-1) },
    { keys: "x", text: "Select the run", run: () => atCursor && choosing.toggle(idsOf(atCursor), cursor) },
    { keys: "enter", text: "Open the run", run: () => atCursor && open(atCursor.kind === "run" ? atCursor.run : atCursor.group.newest) },
    {
      keys: "c",
      text: "Compare the selected runs",
      run: () => {
        if (selected.size > MOST_COMPARED) say(TOO_MANY);
        else if (selected.size > 1) void navigate({ to: "/compare", search: { ...(project && { project }), runs: [...selected].join(",") } });
      },
    },
    { keys: "a", text: "Select all", run: () => change({ sel: "*" }) },
    { keys: "escape", text: "Select as at first", run: () => change({ sel: "", z: "" }) },
    { keys: "[", text: "Hide or show the runs", run: () => change({ hide: search.hide === "runs" ? undefined : "runs" }, true) },
    { keys: "]", text: "Hide or show the curves", run: () => change({ hide: search.hide === "panels" ? undefined : "panels" }, true) },
  ]);
  useActs(
    useMemo(
      () => [
        { name: "Select all runs", run: () => change({ sel: "*" }) },
        { name: "Group by config (mean over seeds)", run: () => change({ g: ["config"] }) },
        { name: "No groups", run: () => change({ g: [] }) },
        { name: "Show archived runs", run: () => change({ archived: true }) },
        { name: "Clear the filter", run: () => change({ w: "" }) },
      ],
      [change],
    ),
  );

  return (
    <>
      <Head page="runs">
        <Filter value={search.w ?? ""} error={error} names={names.data} onChange={(w, stays) => change({ w }, stays)} />
      </Head>
      <Split hidden={hidden} isNarrow={isNarrow}>
        <section className={styles.runs} aria-label="Runs">
          <div className={styles.bar} role="toolbar" aria-label="Runs">
            <GroupMenu group={search.g ?? []} names={choices} onGroup={(g) => change({ g })} />
            <Picker
              trigger={
                <Button kind="quiet" className={styles.tool}>
                  <span className="quiet">columns</span> {columns.length} <Icon name="chevron" size={12} />
                </Button>
              }
              label="Columns"
              placeholder="metric, config key, ..."
              choices={choices}
              chosen={new Set(columns.map((each) => each.name))}
              stays
              onChoose={(name) => setColumns(toggled(columns, name))}
            />
            <Views
              search={search}
              layout={layout}
              onOpen={(fresh, panels) => {
                setLayout(panels);
                change(fresh);
              }}
            />
            <Menu trigger={<IconButton icon="more" label="More about the list" />}>
              <MenuCheck checked={search.archived ?? false} onChange={(archived) => change({ archived })}>
                Archived runs
              </MenuCheck>
              <MenuCheck checked={search.tests ?? false} onChange={(tests) => change({ tests })}>
                Test runs
              </MenuCheck>
              <MenuLine />
              <MenuItem icon="check" hint="a" onSelect={() => change({ sel: "*" })}>
                Select all
              </MenuItem>
            </Menu>
            <span className={styles.grow} />
            <IconButton
              icon={isNarrow ? "chart" : "left"}
              label={isNarrow ? "Show the curves" : "Hide the runs"}
              onClick={() => change({ hide: "runs" }, true)}
            />
          </div>
          <Table
            rows={rows}
            isOld={isOld}
            isNarrow={isNarrow}
            where={search.w ?? ""}
            lines={lines}
            columns={columns}
            kinds={kinds}
            looks={looks}
            shownNames={drawn.names}
            onClear={() => change({ w: "" })}
            sort={question.sort}
            selected={selected}
            cursor={cursor}
            isDark={isDark}
            project={project}
            choosing={choosing}
            choices={choices}
            own={own}
            onCursor={setCursor}
            onSort={(name, adds) => change({ s: sorted(search.s ?? [], name, kinds.get(name), adds) })}
            onColumns={setColumns}
            onGroup={(name) => change({ g: [name] })}
            onOpen={open}
            onColor={(id, at) => setColorAsked({ id, at })}
          />
          <div className={styles.foot}>
            <span className="quiet" role="status">
              <Count rows={rows} selected={selected.size} isGrouped={isGrouped} />
            </span>
            <span className={styles.grow} />
            {selected.size > 0 && search.sel && <Acts rows={rows} selected={selected} columns={own} onClear={() => change({ sel: "" })} />}
          </div>
        </section>
        <section className={styles.panels} aria-label="Curves">
          <SelectedPanels
            selected={selected}
            search={search}
            drawn={drawn}
            looks={looks}
            layout={layout}
            onLayout={setLayout}
            onChange={change}
            isAlone={hidden === "runs"}
            isNarrow={isNarrow}
          />
        </section>
      </Split>
      {colorAsked && <ColorPicker asked={colorAsked} isDark={isDark} onClose={() => setColorAsked(null)} />}
    </>
  );
}

function Count({ rows, selected, isGrouped }: { rows: Rows; selected: number; isGrouped: boolean }) {
  if (rows.total === null) return null;
  const reading = rows.reading ? `, reading ${count(rows.reading[0])} of ${count(rows.reading[1])}` : "";
  const counted = (number: number, noun: string) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
  const runs = counted(rows.runs, "run");
  return `${isGrouped ? `${counted(rows.total, "group")} of ${runs}` : runs}, ${count(selected)} selected${reading}`;
}

interface TableProps extends Omit<Parameters<typeof RunsTable>[0], "addColumn"> {
  isNarrow: boolean;
  where: string;
  onClear: () => void;
  choices: readonly Choice[];
  own: readonly string[];
}

function Table({ isNarrow, where, choices, own, onClear, ...props }: TableProps) {
  const { rows, columns, onColumns } = props;
  if (rows.error && !rows.isReady) {
    return rows.error.isOfFilter ? <Empty title="The filter chooses no runs yet." /> : <Failure error={rows.error} />;
  }
  if (rows.total === 0) {
    return rows.reading ? (
      <Empty title="Reading the runs for the first time.">
        {count(rows.reading[0])} of {count(rows.reading[1])}
      </Empty>
    ) : where ? (
      <Empty title="No run is like that.">
        <code>{where}</code>
        <Button onClick={onClear}>Clear the filter</Button>
      </Empty>
    ) : (
      <Empty title="There are no runs yet.">
        The first one comes here by itself, of a config or of a script that calls assay.start:
        <code>assay run CONFIG</code>
        <code>python SCRIPT.py</code>
      </Empty>
    );
  }
  if (isNarrow) return <Cards {...props} own={own} />;
  return (
    <RunsTable
      {...props}
      addColumn={
        <Picker
          trigger={<IconButton icon="plus" label="Add a column" size={14} />}
          label="Columns"
          placeholder="metric, config key, ..."
          choices={choices}
          chosen={new Set(columns.map((each) => each.name))}
          stays
          onChoose={(name) => onColumns(toggled(columns, name))}
        />
      }
    />
  );
}

function toggled(columns: readonly ColumnSpec[], name: string): ColumnSpec[] {
  return columns.some((each) => each.name === name) ? columns.filter((each) => each.name !== name) : [...columns, { name }];
}

/** Two sides with a bar between them that can be dragged; either may be hidden. */
function Split({ hidden, isNarrow, children }: { hidden: "runs" | "panels" | undefined; isNarrow: boolean; children: [React.ReactNode, React.ReactNode] }) {
  const [share, setShare] = useKept("split", 50);
  const place = useRef<HTMLElement>(null);
  const drag = (event: PointerEvent) => {
    event.preventDefault();
    const { left, width } = place.current!.getBoundingClientRect();
    const move = (each: globalThis.PointerEvent) => setShare(Math.max(15, Math.min(85, Math.round(((each.clientX - left) / width) * 1000) / 10)));
    const up = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
  };
  const columns = hidden === "runs" ? "0 0 minmax(0, 1fr)" : hidden === "panels" ? "minmax(0, 1fr) 0 0" : `minmax(0, ${share}fr) 1px minmax(0, ${100 - share}fr)`;
  return (
    <main id="main" ref={place} className={styles.split} style={{ gridTemplateColumns: columns }}>
      {hidden === "runs" ? <span /> : children[0]}
      {hidden === undefined && !isNarrow ? (
        // A separator that takes keys is a control.
        // eslint-disable-next-line jsx-a11y/no-noninteractive-element-interactions
        <div
          className={styles.divider}
          role="separator"
          aria-orientation="vertical"
          aria-label="Room for the runs"
          aria-valuenow={Math.round(share)}
          aria-valuemin={15}
          aria-valuemax={85}
          // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
          tabIndex={0}
          onPointerDown={drag}
          onDoubleClick={() => setShare(47)}
          onKeyDown={(event) => {
            const by = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
            if (by) setShare(Math.max(15, Math.min(85, share + by)));
          }}
        />
      ) : (
        <span />
      )}
      {hidden === "panels" ? <span /> : children[1]}
    </main>
  );
}

function GroupMenu({ group, names, onGroup }: { group: readonly string[]; names: readonly Choice[]; onGroup: (group: string[]) => void }) {
  const shown = group.length ? group.map((name) => name.split(".").at(-1)).join(", ") : "none";
  const [isChoosing, setChoosing] = useState(false);
  if (isChoosing) {
    return (
      <Picker
        trigger={<Button kind="quiet">...</Button>}
        label="Group by"
        placeholder="group by"
        choices={names}
        isOpenAtFirst
        onClose={() => setChoosing(false)}
        onChoose={(name) => onGroup([name])}
      />
    );
  }
  return (
    <Menu
      trigger={
        <Button kind="quiet" className={styles.tool}>
          <span className="quiet">group</span> <span className="ellipsis">{shown}</span> <Icon name="chevron" size={12} />
        </Button>
      }
    >
      <MenuItem {...(!group.length && { icon: "check" as const })} onSelect={() => onGroup([])}>
        none
      </MenuItem>
      <MenuItem {...(group[0] === "config" && { icon: "check" as const })} onSelect={() => onGroup(["config"])}>
        config, without the seed
      </MenuItem>
      <MenuItem {...(group[0] === "tag" && { icon: "check" as const })} onSelect={() => onGroup(["tag"])}>
        tag
      </MenuItem>
      <MenuLine />
      <MenuItem icon="search" onSelect={() => setChoosing(true)}>
        Another key ...
      </MenuItem>
    </Menu>
  );
}

interface SelectedProps {
  selected: ReadonlySet<string>;
  search: WorkspaceSearch;
  drawn: Drawn;
  looks: ReadonlyMap<string, Style>;
  layout: Layout;
  isAlone: boolean;
  isNarrow: boolean;
  onLayout: (layout: Layout) => void;
  onChange: (changes: Partial<WorkspaceSearch>, stays?: boolean) => void;
}

/** What is drawn of the selected runs. */
interface Drawn {
  /** Each run, or each group as one. */
  runs: PanelRun[];
  /** The ids of the runs in it. */
  ids: readonly string[];
  names: ReadonlyMap<string, ShownName>;
  /** Undefined until they are known. */
  metrics: readonly string[] | undefined;
  /** Keys in which the runs differ. */
  keys: readonly string[];
  /** Values by which lines are coloured, by run or group; null where each has a colour of its own. */
  values: Colored | null;
  error: Error | null;
}

const NO_KEYS: readonly string[] = [];

function useDrawn(rows: Rows, selected: ReadonlySet<string>, search: WorkspaceSearch, isGrouped: boolean, layout: Layout): Drawn {
  const { project } = useShared();
  const ids = useMemo(() => [...selected].slice(0, MOST_DRAWN), [selected]);
  const asked = useMemo(() => [...ids].sort().join(","), [ids]);
  const by = search.by ?? "";
  const found = useQuery({
    queryKey: ["shown", project, asked, by],
    queryFn: async () => {
      const shown = await data(api.GET("/api/shown", { params: { query: { project, runs: asked, by } } }));
      askForCurves(lookOf(project, axisOf(search), parseZoom(search.z), isGrouped), ids, openMetrics(shown.metrics, layout, search.p ?? ""));
      return shown;
    },
    placeholderData: (before) => before,
    enabled: ids.length > 0,
  });
  const { data: shown, error } = found;
  const version = rows.snapshotVersion;
  // eslint-disable-next-line react-hooks/exhaustive-deps -- rows change in place, which the version says
  const { runs, names } = useStable(useMemo(() => drawnOf(rows, ids, isGrouped, shown), [rows, version, ids, isGrouped, shown]));
  return useMemo(
    () => ({
      runs,
      ids,
      names: new Map(names),
      // Before the groups have come each run would be drawn alone.
      metrics: isGrouped && !rows.isReady ? undefined : shown?.metrics,
      keys: shown?.keys ?? NO_KEYS,
      // Runs of a group share what they are grouped by: the first tells it.
      values: by && shown ? Object.fromEntries(runs.map(({ id, members }) => [id, shown.values[members?.[0] ?? id] ?? null])) : null,
      error,
    }),
    [runs, names, ids, isGrouped, rows.isReady, shown, by, error],
  );
}

function SelectedPanels({ selected, search, drawn, looks, layout, isAlone, isNarrow, onLayout, onChange }: SelectedProps) {
  const { ids, metrics } = drawn;
  const charts = useCharts(search, onChange, [layout, onLayout], metrics ?? NO_METRICS);
  const marks = useRunMarks(ids.length === 1 ? ids[0]! : null);
  return (
    <>
      <div className={styles.panelsHead}>
        {isAlone && <IconButton icon={isNarrow ? "table" : "right"} label="Show the runs" onClick={() => onChange({ hide: isNarrow ? "panels" : undefined }, true)} />}
        <div className={styles.grow}>
          <AxisBar {...charts.bar} colors={{ by: search.by ?? "", keys: drawn.keys, onChange: (by) => onChange({ by }, true) }} />
        </div>
        {!isNarrow && !isAlone && <IconButton icon="right" label="Hide the curves" className={styles.hidePanels} onClick={() => onChange({ hide: "panels" }, true)} />}
      </div>
      <div className={styles.scroll}>
        {selected.size > MOST_DRAWN && (
          <p className={styles.hint}>
            {count(MOST_DRAWN)} runs are drawn, <Rest count={selected.size - MOST_DRAWN} at="a filter chooses fewer" />
          </p>
        )}
        {!ids.length ? (
          <Empty title="No run is selected.">Choose some at the left: their curves come here.</Empty>
        ) : drawn.error ? (
          <Failure error={drawn.error} />
        ) : metrics?.length === 0 ? (
          <Empty title="Nothing was logged yet.">The first points come here by themselves.</Empty>
        ) : (
          metrics && <Panels {...charts.panels} runs={drawn.runs} looks={looks} marks={marks} place="workspace" />
        )}
      </div>
    </>
  );
}

/** Return what is drawn of the selected runs, each, or each group as one; and what each row is called. */
function drawnOf(rows: Rows, ids: readonly string[], isGrouped: boolean, shown: Schema["ShownFacts"] | undefined): { runs: PanelRun[]; names: [string, ShownName][] } {
  const chosen = new Set(ids);
  const found = new Map<string, PanelRun>();
  const nameOf = (id: string): ShownName => ({ label: shown?.names[id] ?? id, short: shown?.short[id] ?? id });
  for (let index = 0; isGrouped && index < Math.min(rows.total ?? 0, 20_000) && chosen.size; index++) {
    const line = rows.line(index);
    const members = line?.kind === "group" ? line.group.ids.filter((id) => chosen.has(id)) : [];
    if (line?.kind !== "group" || !members.length) continue;
    found.set(groupId(line.group), { id: groupId(line.group), label: line.group.name, short: line.group.short, members });
    for (const id of members) chosen.delete(id);
  }
  const single = ids.filter((id) => chosen.has(id)).map((id): PanelRun => ({ id, ...nameOf(id) }));
  return { runs: [...found.values(), ...single], names: ids.map((id) => [id, nameOf(id)]) };
}

/** Return the kind of each column: "number" where the first rows have numbers, else that of the server. */
function useKinds(rows: Rows): ReadonlyMap<string, string> {
  const kinds = rows.columns.map((column, at) => {
    for (let index = 0; index < Math.min(rows.total ?? 0, 20); index++) {
      const line = rows.line(index);
      const value: unknown = line?.kind === "run" ? line.run.cells[at] : line?.group.cells[at];
      if (typeof value === "number" || isLongInteger(value) || (typeof value === "object" && value !== null)) return [column.name, "number"] as const;
      if (typeof value === "string") break;
    }
    return [column.name, column.kind] as const;
  });
  const stable = useStable(kinds);
  return useMemo(() => new Map(stable), [stable]);
}

function useColumnChoices(names: { metrics: string[]; results: string[]; config: string[] } | undefined): Choice[] {
  return useMemo(() => {
    if (!names) return [];
    return [
      ...FACTS.map((value) => ({ value, kind: "" })),
      ...names.config.map((value) => ({ value, kind: "config" })),
      ...names.metrics.flatMap((value) => [value, `${value}.min`, `${value}.max`, `${value}.mean`].map((each) => ({ value: each, kind: "metric" }))),
      ...names.results.map((value) => ({ value, kind: "result" })),
      { value: "note", kind: "" },
      { value: "desc", kind: "" },
    ];
  }, [names]);
}

/** Return what changes a part of the address: a step that leads back, or the same step when it `stays`. */
function useChange(): (changes: Partial<WorkspaceSearch>, stays?: boolean) => void {
  const navigate = useNavigate({ from: "/" });
  return useCallback(
    (changes, stays = false) => void navigate({ to: "/", search: (before: WorkspaceSearch) => ({ ...before, ...changes }), replace: stays }),
    [navigate],
  );
}

/** Return the selected runs: those of the address, else all that train now, else the newest. */
function useSelected(rows: Rows, text: string | undefined): ReadonlySet<string> {
  const { live } = useShared();
  const version = rows.snapshotVersion;
  // eslint-disable-next-line react-hooks/exhaustive-deps -- rows change in place, which the version says
  const list = useStable(useMemo(() => selectedOf(rows, live.gone, text), [rows, live, version, text]));
  return useMemo(() => new Set(list), [list]);
}

function selectedOf(rows: Rows, gone: ReadonlySet<string>, text: string | undefined): string[] {
  if (text === "-") return [];
  if (text && text !== "*") return text.split(",");
  const found: string[] = [];
  if (text === "*") {
    for (let index = 0; index < (rows.total ?? 0) && found.length < 20_000; index++) {
      const line = rows.line(index);
      if (line) found.push(...idsOf(line));
    }
    return found;
  }
  let newest: RunLine | null = null;
  for (let index = 0; index < Math.min(rows.total ?? 0, 200); index++) {
    const line = rows.line(index);
    if (line?.kind === "group") return [...line.group.ids];
    if (!line || gone.has(line.run.id)) continue;
    if (line.run.status === "running" && found.length < MOST_AUTOMATIC) found.push(line.run.id);
    if (!newest || line.run.created > newest.created) newest = line.run;
  }
  return found.length ? found : newest ? [newest.id] : [];
}

function useChoosing(
  lineAt: (index: number) => ReturnType<Rows["line"]>,
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
          const line = lineAt(at);
          if (line) for (const id of idsOf(line)) found.add(id);
        }
        select([...found]);
      },
    }),
    [lineAt, selected, select, cursor, setCursor],
  );
}

/** Return the order after a click on a head: down, up, none for numbers; up, down, none for texts. */
export function sorted(before: readonly string[], name: string, kind: string | undefined, adds: boolean): string[] {
  const isText = ["tag", "status", "reason", "id", "labels"].includes(name) || kind === "desc" || kind === "note";
  const steps = isText ? [name, `-${name}`] : [`-${name}`, name];
  const at = before.find((each) => each.replace(/^-/, "") === name);
  const next = at === undefined ? steps[0] : at === steps[0] ? steps[1] : undefined;
  const others = adds ? before.filter((each) => each.replace(/^-/, "") !== name) : [];
  return next ? [...others, next] : [...others];
}
