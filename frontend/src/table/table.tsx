/** The table of runs: rows of 28 pixels, as many of them in the document as the window shows. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useEffect, useMemo, useRef, useState, type CSSProperties, type KeyboardEvent } from "react";
import type { RunLine } from "../api/client";
import type { ColumnSpec } from "../state/address";
import { useSlots, type Style } from "../state/colors";
import type { Line, Rows } from "../state/rows";
import { useNow } from "../state/site";
import type { ShownName } from "./cells";
import { isFact } from "./columns";
import type { Lines } from "./expanded";
import { HeadCell } from "./head";
import { useInnerWidth, useLayout, useShownColumns } from "./layout";
import { cellOf, colorIdOf, Row } from "./row";
import { useDragSelection, type Choosing } from "./selecting";
import { useSparks } from "./sparks";
import styles from "./table.module.css";

const ROW = 28;
const OVERSCAN = 8;

export interface RunsTableProps {
  rows: Rows;
  lines: Lines;
  isOld: boolean;
  columns: readonly ColumnSpec[];
  kinds: ReadonlyMap<string, string>;
  /** How each run or group that is drawn is drawn, and what it is called there. */
  looks: ReadonlyMap<string, Style>;
  shownNames: ReadonlyMap<string, ShownName>;
  sort: readonly string[];
  selected: ReadonlySet<string>;
  cursor: number;
  isDark: boolean;
  project: string;
  addColumn: React.ReactNode;
  choosing: Choosing;
  onCursor: (index: number) => void;
  onSort: (name: string, adds: boolean) => void;
  onColumns: (columns: ColumnSpec[]) => void;
  onGroup: (name: string) => void;
  onOpen: (run: RunLine) => void;
  onColor: (id: string, at: DOMRect) => void;
}

export function RunsTable(props: RunsTableProps) {
  const { rows, lines, columns, selected, cursor, onCursor, isDark, project } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const total = lines.total ?? 0;
  const virtual = useVirtualizer({
    count: total,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: OVERSCAN,
    paddingStart: 0,
  });
  const items = virtual.getVirtualItems();
  const first = items[0]?.index ?? 0;
  const last = items.at(-1)?.index ?? 0;
  // A row that leaves the window gives its elements to one that comes: only texts change, which is half the work of a
  // frame. So the order in the document is not that of the rows; `aria-owns` says the latter.
  const places = Math.ceil((virtual.scrollRect?.height ?? 0) / ROW) + 2 * OVERSCAN + 2;
  const placed = [...items].sort((a, b) => (a.index % places) - (b.index % places));
  useEffect(() => rows.ensure(...lines.within(first, last)), [rows, lines, first, last]);
  useEffect(() => {
    if (cursor >= 0 && cursor < total) virtual.scrollToIndex(cursor, { align: "auto" });
    // eslint-disable-next-line react-hooks/exhaustive-deps -- only when the cursor moves
  }, [cursor]);

  const now = useNow(1);
  const sparks = useSparks(rows, first, last, project, columns.some((each) => each.name === "best"));
  const layout = useLayout(columns, useInnerWidth(scroller), rows.question.group.length > 0);
  const slots = useSlots();
  const cellPlaces = usePlaces(rows);
  const differing = useDiffering(rows, columns, cellPlaces, selected);
  const drag = useDragSelection(props.choosing, rows);
  const [isAside, setAside] = useState(false);
  const [shown, lookAtColumns] = useShownColumns(scroller, columns, layout);

  return (
    <div
      ref={scroller}
      className={styles.scroller}
      role="grid"
      aria-label="Runs"
      aria-rowcount={total + 1}
      aria-colcount={columns.length + 1}
      aria-multiselectable="true"
      aria-busy={props.isOld || undefined}
      aria-activedescendant={cursor >= 0 ? `row-${cursor}` : undefined}
      tabIndex={0}
      onKeyDown={(event: KeyboardEvent) => {
        const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
        if (step === undefined || event.target !== event.currentTarget) return;
        event.preventDefault();
        onCursor(Math.max(0, Math.min(total - 1, cursor + step)));
      }}
      data-aside={isAside || undefined}
      onScroll={(event) => {
        setAside(event.currentTarget.scrollLeft > 0);
        lookAtColumns();
      }}
      style={{ "--columns": layout.template, "--width": `${layout.width}px` } as CSSProperties}
    >
      <Head
        columns={columns}
        kinds={props.kinds}
        lefts={layout.lefts}
        sort={props.sort}
        addColumn={props.addColumn}
        onSort={props.onSort}
        onColumns={props.onColumns}
        onGroup={props.onGroup}
      />
      <div
        className={styles.body}
        style={{ height: virtual.getTotalSize() }}
        data-old={props.isOld || undefined}
        role="rowgroup"
        aria-owns={items.map((item) => `row-${item.index}`).join(" ") || undefined}
      >
        {placed.map((item) => {
          const line = lines.lineAt(item.index);
          return (
            <Row
              key={item.index % places}
              index={item.index}
              line={line}
              top={item.start}
              columns={columns}
              kinds={props.kinds}
              lefts={layout.lefts}
              shown={shown}
              isSelected={line ? isSelected(line, selected) : false}
              isAtCursor={item.index === cursor}
              differing={differing}
              now={isLive(line) ? now : Math.floor(now / 15) * 15}
              fetchedAt={rows.fetchedAt}
              spark={line?.kind === "run" ? sparks(line.run) : undefined}
              slot={line ? slots.get(colorIdOf(line)) : undefined}
              look={line ? props.looks.get(colorIdOf(line)) : undefined}
              shownName={line ? props.shownNames.get(colorIdOf(line)) : undefined}
              places={cellPlaces}
              isDark={isDark}
              drag={drag}
              isOpen={line ? lines.isOpen(line) : false}
              onToggle={lines.toggle}
              onOpen={props.onOpen}
              onColor={props.onColor}
            />
          );
        })}
      </div>
    </div>
  );
}

interface HeadProps extends Pick<RunsTableProps, "columns" | "kinds" | "sort" | "addColumn" | "onSort" | "onColumns" | "onGroup"> {
  lefts: readonly (number | undefined)[];
}

/** The heads of the columns, which scrolling the rows leaves as they are. */
const Head = memo(function Head({ columns, kinds, lefts, sort, addColumn, onSort, onColumns, onGroup }: HeadProps) {
  return (
    <div className={styles.head} role="row" aria-rowindex={1}>
      <span className={styles.corner} role="columnheader" aria-label="Selected" />
      {columns.map((column, at) => (
        <HeadCell
          key={column.name}
          column={column}
          columns={columns}
          kind={kinds.get(column.name)}
          sort={sort}
          left={lefts[at]}
          onSort={onSort}
          onColumns={onColumns}
          onGroup={onGroup}
        />
      ))}
      <span className={styles.add} role="columnheader" aria-label="More columns">
        {addColumn}
      </span>
    </div>
  );
});

function isLive(line: Line | undefined): boolean {
  return line?.kind === "run" && line.run.status === "running";
}

function isSelected(line: Line, selected: ReadonlySet<string>): boolean {
  return line.kind === "run" ? selected.has(line.run.id) : line.group.ids.every((id) => selected.has(id));
}

/** Return the place of each column among the cells of the rows. */
export function usePlaces(rows: Rows): ReadonlyMap<string, number> {
  const { columns } = rows;
  return useMemo(() => new Map(columns.map((column, at) => [column.name, at])), [columns]);
}

/** Return the columns in which the selected runs differ. */
function useDiffering(rows: Rows, columns: readonly ColumnSpec[], places: ReadonlyMap<string, number>, selected: ReadonlySet<string>): ReadonlySet<string> {
  const version = rows.snapshotVersion;
  return useMemo(() => {
    const found = new Set<string>();
    if (selected.size < 2 || selected.size > 500) return found;
    const values = columns.map(() => new Set<string>());
    for (let index = 0; index < Math.min(rows.total ?? 0, 5000); index++) {
      const line = rows.line(index);
      if (line?.kind !== "run" || !selected.has(line.run.id)) continue;
      columns.forEach((column, at) => {
        if (!isFact(column.name)) values[at]!.add(JSON.stringify(cellOf(line, column.name, places)));
      });
    }
    columns.forEach((column, at) => {
      if (values[at]!.size > 1) found.add(column.name);
    });
    return found;
    // eslint-disable-next-line react-hooks/exhaustive-deps -- rows change in place, which the version says
  }, [rows, version, columns, places, selected]);
}
