/** The table of runs: rows of 28 pixels, as many of them in the document as the window shows. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState, type CSSProperties, type KeyboardEvent, type PointerEvent } from "react";
import type { RunLine } from "../api/client";
import type { Curve } from "../api/curves";
import { Icon } from "../parts/icons";
import type { ColumnSpec } from "../state/address";
import { colorAt, useSlots } from "../state/colors";
import { groupId, idsOf, type Line, type Rows } from "../state/rows";
import { useNow } from "../state/site";
import { GroupCell, RunCell, runTitle } from "./cells";
import { fittedWidths, isFact, isRight } from "./columns";
import type { Lines } from "./expanded";
import { HeadCell } from "./head";
import { useSparks } from "./sparks";
import styles from "./table.module.css";

const ROW = 28;
const CHECK = 30;
const DOT = 22;
const ADD = 32;
const OVERSCAN = 8;
/** How far beside the window cells are drawn, in pixels: a sideways scroll finds them there. */
const SIDE_ROOM = 200;

export interface Choosing {
  /** Replace the selection. */
  only: (ids: readonly string[], index: number) => void;
  toggle: (ids: readonly string[], index: number) => void;
  /** From the last one that was chosen to here. */
  range: (index: number) => void;
}

export interface RunsTableProps {
  rows: Rows;
  lines: Lines;
  isOld: boolean;
  columns: readonly ColumnSpec[];
  kinds: ReadonlyMap<string, string>;
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
  useEffect(() => rows.ensure(...lines.within(first, last)), [rows, lines, first, last]);
  useEffect(() => {
    if (cursor >= 0 && cursor < total) virtual.scrollToIndex(cursor, { align: "auto" });
    // eslint-disable-next-line react-hooks/exhaustive-deps -- only when the cursor moves
  }, [cursor]);

  const now = useNow(1);
  const sparks = useSparks(rows, first, last, project, columns.some((each) => each.name === "best"));
  const layout = useLayout(columns, useInnerWidth(scroller));
  const slots = useSlots();
  const differing = useDiffering(rows, columns, selected);
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
      <div className={styles.body} style={{ height: virtual.getTotalSize() }} data-old={props.isOld || undefined} role="rowgroup">
        {items.map((item) => {
          const line = lines.lineAt(item.index);
          return (
            <Row
              key={item.index}
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

/** Return by what a row has its colour. */
function colorIdOf(line: Line): string {
  return line.kind === "run" ? line.run.id : groupId(line.group);
}

function isLive(line: Line | undefined): boolean {
  return line?.kind === "run" && line.run.status === "running";
}

function isSelected(line: Line, selected: ReadonlySet<string>): boolean {
  return line.kind === "run" ? selected.has(line.run.id) : line.group.ids.every((id) => selected.has(id));
}

interface RowProps {
  index: number;
  line: Line | undefined;
  top: number;
  columns: readonly ColumnSpec[];
  kinds: ReadonlyMap<string, string>;
  lefts: readonly (number | undefined)[];
  /** The places of the columns that are drawn. */
  shown: readonly number[];
  isSelected: boolean;
  isAtCursor: boolean;
  differing: ReadonlySet<string>;
  now: number;
  fetchedAt: number;
  spark: Curve | undefined;
  /** The number of its colour; undefined for what was never drawn. */
  slot: number | undefined;
  isDark: boolean;
  drag: DragSelection;
  isOpen: boolean;
  onToggle: (line: Line) => void;
  onOpen: (run: RunLine) => void;
  onColor: (id: string, at: DOMRect) => void;
}

const Row = memo(function Row(props: RowProps) {
  const { index, line, top, columns, kinds, lefts, isSelected, drag } = props;
  const style = { top };
  if (!line) return <div className={styles.row} style={style} role="row" aria-rowindex={index + 2} data-loading="true" />;
  const id = colorIdOf(line);
  const color = colorAt(props.slot, props.isDark);
  const run = line.kind === "run" ? line.run : line.group.newest;
  return (
    // Keys are handled by the table as a whole: arrows, x, enter.
    // eslint-disable-next-line jsx-a11y/click-events-have-key-events
    <div
      id={`row-${index}`}
      tabIndex={-1}
      className={styles.row}
      style={style}
      role="row"
      aria-rowindex={index + 2}
      aria-selected={isSelected}
      data-cursor={props.isAtCursor || undefined}
      data-run={line.kind === "run" ? run.id : undefined}
      data-inside={(line.kind === "run" && line.isInside) || undefined}
      onClick={(event) => drag.click(index, line, event)}
      onDoubleClick={() => props.onOpen(run)}
    >
      <span className={styles.corner} role="gridcell" data-check onPointerDown={(event) => drag.down(index, line, event)} onPointerEnter={() => drag.enter(index)}>
        <span className={styles.check} data-checked={isSelected || undefined}>
          {isSelected && <Icon name="check" size={12} />}
        </span>
        <button
          type="button"
          className={styles.dot}
          data-none={props.slot === undefined || undefined}
          style={{ color }}
          tabIndex={-1}
          aria-label={`Colour of ${run.tag || id}`}
          onClick={(event) => {
            event.stopPropagation();
            props.onColor(id, event.currentTarget.getBoundingClientRect());
          }}
        />
      </span>
      {props.shown.map((at, place) => {
        const column = columns[at]!;
        const isAfterGap = at > 0 && props.shown[place - 1] !== at - 1;
        const value = cellOf(line, column.name, at, columns);
        return (
          <span
            key={column.name}
            role="gridcell"
            className={styles.cell}
            title={line.kind === "run" ? runTitle(run, column.name, value) : undefined}
            data-right={isRight(column, kinds.get(column.name)) || typeof value === "number" || undefined}
            data-pinned={lefts[at] !== undefined || undefined}
            data-differs={(isSelected && props.differing.has(column.name)) || undefined}
            aria-colindex={isAfterGap ? at + 2 : undefined}
            style={cellStyle(lefts[at], isAfterGap ? at + 2 : null)}
          >
            {line.kind === "group" && at === 0 && (
              <button
                type="button"
                className={styles.open}
                tabIndex={-1}
                aria-expanded={props.isOpen}
                aria-label={`Runs of ${run.tag || id}`}
                onClick={(event) => {
                  event.stopPropagation();
                  props.onToggle(line);
                }}
              >
                <Icon name={props.isOpen ? "chevron" : "right"} size={12} />
                {line.group.ids.length}
              </button>
            )}
            {line.kind === "run" ? (
              <RunCell run={run} name={column.name} value={value} now={props.now} fetchedAt={props.fetchedAt} spark={props.spark} color={color} />
            ) : (
              <GroupCell group={line.group} name={column.name} value={value} now={props.now} />
            )}
          </span>
        );
      })}
    </div>
  );
});

/** Return the style of a cell: most have none of their own, which makes them cheap. */
function cellStyle(left: number | undefined, gridColumnStart: number | null): CSSProperties | undefined {
  if (left === undefined && gridColumnStart === null) return undefined;
  return { ...(left !== undefined && { left }), ...(gridColumnStart !== null && { gridColumnStart }) };
}

/** Return the value of a cell: what every run has is not among the cells that the server was asked for. */
function cellOf(line: Line, name: string, at: number, columns: readonly ColumnSpec[]): unknown {
  if (line.kind === "group") return line.group.cells[at];
  if (isFact(name)) return undefined;
  const before = columns.slice(0, at).filter((each) => !isFact(each.name)).length;
  return line.run.cells[before];
}

interface Layout {
  widths: readonly number[];
  template: string;
  width: number;
  /** How far from the left a pinned column stays; undefined for the others. */
  lefts: (number | undefined)[];
}

function useLayout(columns: readonly ColumnSpec[], width: number): Layout {
  return useMemo(() => {
    const widths = fittedWidths(columns, width - CHECK - DOT - ADD);
    let left = CHECK + DOT;
    const lefts = columns.map((column, at) => {
      if (!column.pinned) return undefined;
      const found = left;
      left += widths[at]!;
      return found;
    });
    return {
      widths,
      template: `${CHECK + DOT}px ${widths.map((each) => `${each}px`).join(" ")} minmax(${ADD}px, 1fr)`,
      width: CHECK + DOT + widths.reduce((sum, each) => sum + each, 0) + ADD,
      lefts,
    };
  }, [columns, width]);
}

/** Return how wide the inside of an element is, without its scroll bar, in pixels. */
function useInnerWidth(place: React.RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = place.current!;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    setWidth(element.clientWidth);
    observer.observe(element);
    return () => observer.disconnect();
  }, [place]);
  return width;
}

/** Return the places of the columns within the window or pinned, and what looks anew after a sideways scroll. */
function useShownColumns(
  scroller: React.RefObject<HTMLDivElement | null>,
  columns: readonly ColumnSpec[],
  layout: Layout,
): [readonly number[], () => void] {
  const [shown, setShown] = useState("");
  const look = useCallback(() => {
    const box = scroller.current;
    if (!box) return;
    const from = box.scrollLeft - SIDE_ROOM;
    const until = box.scrollLeft + box.clientWidth + SIDE_ROOM;
    let left = CHECK + DOT;
    const found: number[] = [];
    columns.forEach((_, at) => {
      const right = left + layout.widths[at]!;
      if (layout.lefts[at] !== undefined || (right > from && left < until)) found.push(at);
      left = right;
    });
    setShown(found.join(","));
  }, [scroller, columns, layout]);
  useLayoutEffect(() => {
    look();
    const observer = new ResizeObserver(look);
    observer.observe(scroller.current!);
    return () => observer.disconnect();
  }, [scroller, look]);
  const places = useMemo(() => (shown ? shown.split(",").map(Number) : []), [shown]);
  // For one drawing the places may be those of columns that are gone.
  return [useMemo(() => places.filter((at) => at < columns.length), [places, columns]), look];
}

/** Return the columns in which the selected runs differ. */
function useDiffering(rows: Rows, columns: readonly ColumnSpec[], selected: ReadonlySet<string>): ReadonlySet<string> {
  const version = rows.snapshotVersion;
  return useMemo(() => {
    const found = new Set<string>();
    if (selected.size < 2 || selected.size > 500) return found;
    const values = columns.map(() => new Set<string>());
    for (let index = 0; index < Math.min(rows.total ?? 0, 5000); index++) {
      const line = rows.line(index);
      if (line?.kind !== "run" || !selected.has(line.run.id)) continue;
      columns.forEach((column, at) => {
        if (!isFact(column.name)) values[at]!.add(JSON.stringify(cellOf(line, column.name, at, columns)));
      });
    }
    columns.forEach((column, at) => {
      if (values[at]!.size > 1) found.add(column.name);
    });
    return found;
    // eslint-disable-next-line react-hooks/exhaustive-deps -- rows change in place, which the version says
  }, [rows, version, columns, selected]);
}

interface DragSelection {
  down: (index: number, line: Line, event: PointerEvent) => void;
  enter: (index: number) => void;
  click: (index: number, line: Line, event: React.MouseEvent) => void;
}

/** Select by click, shift, ctrl, and by dragging over the boxes. */
function useDragSelection(choosing: Choosing, rows: Rows): DragSelection {
  const latest = useRef({ choosing, rows, isDragging: false, began: false });
  latest.current.choosing = choosing;
  latest.current.rows = rows;
  useEffect(() => {
    const up = () => (latest.current.isDragging = false);
    window.addEventListener("pointerup", up);
    return () => window.removeEventListener("pointerup", up);
  }, []);
  return useMemo(
    () => ({
      down: (index, line, event) => {
        if (event.button !== 0 || (event.target as HTMLElement).closest("button")) return;
        latest.current.isDragging = true;
        latest.current.began = true;
        if (event.shiftKey) latest.current.choosing.range(index);
        else latest.current.choosing.toggle(idsOf(line), index);
      },
      enter: (index) => {
        if (latest.current.isDragging) latest.current.choosing.range(index);
      },
      click: (index, line, event) => {
        if (latest.current.began) {
          latest.current.began = false;
          return;
        }
        if (event.shiftKey) latest.current.choosing.range(index);
        else if (event.ctrlKey || event.metaKey) latest.current.choosing.toggle(idsOf(line), index);
        else latest.current.choosing.only(idsOf(line), index);
      },
    }),
    [],
  );
}
