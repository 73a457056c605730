/** The head of a column: its name, its place in the order, its menu; drag it to move it, its edge to resize it. */
import { useRef, type PointerEvent } from "react";
import { IconButton } from "../parts/button";
import { Icon } from "../parts/icons";
import { Menu, MenuItem, MenuLine } from "../parts/menu";
import type { ColumnSpec } from "../state/address";
import { isRight, shortName, widthOf } from "./columns";
import styles from "./table.module.css";

interface HeadProps {
  column: ColumnSpec;
  columns: readonly ColumnSpec[];
  kind: string | undefined;
  sort: readonly string[];
  left: number | undefined;
  onSort: (name: string, adds: boolean) => void;
  onColumns: (columns: ColumnSpec[]) => void;
  onGroup: (name: string) => void;
}

export function HeadCell({ column, columns, kind, sort, left, onSort, onColumns, onGroup }: HeadProps) {
  const at = sort.findIndex((each) => each.replace(/^-/, "") === column.name);
  const isDown = at >= 0 && sort[at]!.startsWith("-");
  const order = at < 0 ? "none" : isDown ? "descending" : "ascending";
  const drag = useDrag(column, columns, onColumns);
  const change = (changes: Partial<ColumnSpec>) => onColumns(columns.map((each) => (each.name === column.name ? { ...each, ...changes } : each)));
  return (
    <span
      role="columnheader"
      aria-sort={order}
      className={styles.headCell}
      data-right={isRight(column, kind) || undefined}
      data-pinned={left !== undefined || undefined}
      data-column={column.name}
      style={left === undefined ? undefined : { left }}
    >
      <button
        type="button"
        className={styles.sort}
        title={column.name}
        onPointerDown={drag.down}
        onClick={(event) => {
          if (!drag.wasMoved()) onSort(column.name, event.shiftKey);
        }}
      >
        <span className="ellipsis">{shortName(column.name)}</span>
        {at >= 0 && <Icon name={isDown ? "down" : "up"} size={12} />}
        {at >= 0 && sort.length > 1 && <span className={styles.place}>{at + 1}</span>}
      </button>
      <span className={styles.headMenu}>
        <Menu trigger={<IconButton icon="chevron" label={`Column ${column.name}`} size={12} className={styles.menuButton} />}>
          <MenuItem icon="up" onSelect={() => onSort(column.name, false)}>
            Sort
          </MenuItem>
          <MenuItem icon="group" onSelect={() => onGroup(column.name)}>
            Group by this
          </MenuItem>
          <MenuItem icon="pin" onSelect={() => change({ pinned: !column.pinned })}>
            {column.pinned ? "Let go" : "Pin to the left"}
          </MenuItem>
          <MenuLine />
          <MenuItem icon="left" disabled={columns[0]?.name === column.name} onSelect={() => onColumns(moved(columns, column.name, -1))}>
            Move left
          </MenuItem>
          <MenuItem icon="right" disabled={columns.at(-1)?.name === column.name} onSelect={() => onColumns(moved(columns, column.name, 1))}>
            Move right
          </MenuItem>
          <MenuLine />
          <MenuItem icon="cross" onSelect={() => onColumns(columns.filter((each) => each.name !== column.name))}>
            Remove
          </MenuItem>
        </Menu>
      </span>
      <span className={styles.resize} aria-hidden="true" onPointerDown={(event) => resize(event, column, change)} onDoubleClick={() => change({ width: undefined })} />
    </span>
  );
}

export function moved(columns: readonly ColumnSpec[], name: string, by: number): ColumnSpec[] {
  const from = columns.findIndex((each) => each.name === name);
  const found = [...columns];
  const [column] = found.splice(from, 1);
  if (column) found.splice(Math.max(0, from + by), 0, column);
  return found;
}

function resize(event: PointerEvent, column: ColumnSpec, change: (changes: Partial<ColumnSpec>) => void): void {
  event.preventDefault();
  event.stopPropagation();
  const start = event.clientX;
  const before = widthOf(column);
  const move = (each: globalThis.PointerEvent) => change({ width: Math.max(40, Math.min(800, Math.round(before + each.clientX - start))) });
  const up = () => {
    window.removeEventListener("pointermove", move);
    window.removeEventListener("pointerup", up);
  };
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", up);
}

/** Let a head be dragged to another place among the heads. */
function useDrag(column: ColumnSpec, columns: readonly ColumnSpec[], onColumns: (columns: ColumnSpec[]) => void) {
  const isMoved = useRef(false);
  return {
    wasMoved: () => isMoved.current,
    down: (event: PointerEvent) => {
      isMoved.current = false;
      if (event.button !== 0) return;
      const start = event.clientX;
      const head = event.currentTarget.closest("[role=row]");
      let target = column.name;
      const move = (each: globalThis.PointerEvent) => {
        if (Math.abs(each.clientX - start) < 6 && !isMoved.current) return;
        isMoved.current = true;
        const over = document.elementFromPoint(each.clientX, each.clientY)?.closest<HTMLElement>("[data-column]");
        head?.querySelectorAll("[data-drop]").forEach((cell) => cell.removeAttribute("data-drop"));
        if (over && over.dataset.column !== column.name) {
          target = over.dataset.column!;
          over.dataset.drop = "true";
        }
      };
      const up = () => {
        window.removeEventListener("pointermove", move);
        window.removeEventListener("pointerup", up);
        head?.querySelectorAll("[data-drop]").forEach((cell) => cell.removeAttribute("data-drop"));
        if (target === column.name) return;
        const from = columns.findIndex((each) => each.name === column.name);
        const to = columns.findIndex((each) => each.name === target);
        onColumns(moved(columns, column.name, to - from));
      };
      window.addEventListener("pointermove", move);
      window.addEventListener("pointerup", up);
    },
  };
}
