/** One row of the table: a run, or a group of runs. */
import { memo, type CSSProperties, type PointerEvent } from "react";
import type { RunLine } from "../api/client";
import type { Curve } from "../api/curves";
import { Icon } from "../parts/icons";
import type { ColumnSpec } from "../state/address";
import { Stroke } from "../parts/stroke";
import { colorAt, type Style } from "../state/colors";
import { groupId, type Line } from "../state/rows";
import { GroupCell, RunCell, runTitle, type ShownName } from "./cells";
import { isFact, isRight } from "./columns";
import type { DragSelection } from "./selecting";
import styles from "./table.module.css";

/** Return by what a row has its colour. */
export function colorIdOf(line: Line): string {
  return line.kind === "run" ? line.run.id : groupId(line.group);
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
  /** How it is drawn, undefined where it is not. */
  look: Style | undefined;
  shownName: ShownName | undefined;
  /** The place of each column among the cells of a run or group. */
  places: ReadonlyMap<string, number>;
  isDark: boolean;
  drag: DragSelection;
  isOpen: boolean;
  onToggle: (line: Line) => void;
  onOpen: (run: RunLine) => void;
  onColor: (id: string, at: DOMRect) => void;
}

export const Row = memo(function Row(props: RowProps) {
  const { index, line, top, columns, kinds, lefts, isSelected, drag, places, shownName, look } = props;
  const style = { top };
  if (!line) return <div id={`row-${index}`} className={styles.row} style={style} role="row" aria-rowindex={index + 2} data-loading="true" />;
  const id = colorIdOf(line);
  const color = look?.color ?? colorAt(props.slot, props.isDark);
  const run = line.kind === "run" ? line.run : line.group.newest;
  const called = line.kind === "group" ? line.group.name : (shownName?.label ?? (run.tag || id));
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
      onPointerMove={line.kind === "run" ? (event) => explain(event, line, columns, places, props.shown, shownName) : undefined}
    >
      <span className={styles.corner} role="gridcell" data-check onPointerDown={(event) => drag.down(index, line, event)} onPointerEnter={() => drag.enter(index)}>
        <span className={styles.check} data-checked={isSelected || undefined}>
          {isSelected && <Icon name="check" size={12} />}
        </span>
        <button
          type="button"
          className={styles.dot}
          data-none={(!look && props.slot === undefined) || undefined}
          data-dashed={Boolean(look?.dash.length) || undefined}
          style={{ color }}
          tabIndex={-1}
          aria-label={`Colour of ${called}`}
          onClick={(event) => {
            event.stopPropagation();
            props.onColor(id, event.currentTarget.getBoundingClientRect());
          }}
        >
          {look && look.dash.length > 0 && <Stroke color={color} dash={look.dash} width={18} />}
        </button>
      </span>
      {props.shown.map((at, place) => {
        const column = columns[at]!;
        const isAfterGap = at > 0 && props.shown[place - 1] !== at - 1;
        const value = cellOf(line, column.name, places);
        return (
          <span
            key={column.name}
            role="gridcell"
            className={styles.cell}
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
                aria-label={`Runs of ${called}`}
                onClick={(event) => {
                  event.stopPropagation();
                  props.onToggle(line);
                }}
              >
                <Icon name={props.isOpen ? "chevron" : "right"} size={12} />
                <span title={`n = ${line.group.ids.length}`}>{line.group.ids.length}</span>
              </button>
            )}
            {line.kind === "run" ? (
              <RunCell run={run} shownName={shownName} name={column.name} value={value} now={props.now} fetchedAt={props.fetchedAt} spark={props.spark} color={color} />
            ) : (
              <GroupCell group={line.group} name={column.name} value={value} now={props.now} />
            )}
          </span>
        );
      })}
    </div>
  );
});

/** Say in full what the cell under the pointer shortens: a title in every cell costs a tenth of each frame of a scroll. */
function explain(
  event: PointerEvent,
  line: Line & { kind: "run" },
  columns: readonly ColumnSpec[],
  places: ReadonlyMap<string, number>,
  shown: readonly number[],
  shownName: ShownName | undefined,
): void {
  const cell = (event.target as Element).closest<HTMLElement>("[role=gridcell]");
  const at = cell ? shown[[...event.currentTarget.children].indexOf(cell) - 1] : undefined;
  if (!cell || at === undefined) return;
  const { name } = columns[at]!;
  cell.title = runTitle(line.run, name, cellOf(line, name, places), shownName) ?? "";
}

/** Return the style of a cell: most have none of their own, which makes them cheap. */
function cellStyle(left: number | undefined, gridColumnStart: number | null): CSSProperties | undefined {
  if (left === undefined && gridColumnStart === null) return undefined;
  return { ...(left !== undefined && { left }), ...(gridColumnStart !== null && { gridColumnStart }) };
}

/** Return the value of a cell by the places of the columns: what every run has is not among the cells of a run. */
export function cellOf(line: Line, name: string, places: ReadonlyMap<string, number>): unknown {
  const at = places.get(name);
  if (at === undefined || (line.kind === "run" && isFact(name))) return undefined;
  return line.kind === "group" ? line.group.cells[at] : line.run.cells[at];
}
