/** How rows are selected: by a click, with shift or ctrl, and by dragging over their boxes. */
import { useEffect, useMemo, useRef, type MouseEvent, type PointerEvent } from "react";
import { idsOf, type Line, type Rows } from "../state/rows";

export interface Choosing {
  /** Replace the selection. */
  only: (ids: readonly string[], index: number) => void;
  toggle: (ids: readonly string[], index: number) => void;
  /** From the last one that was chosen to here. */
  range: (index: number) => void;
}

export interface DragSelection {
  down: (index: number, line: Line, event: PointerEvent) => void;
  enter: (index: number) => void;
  click: (index: number, line: Line, event: MouseEvent) => void;
}

/** Return what a row calls when it is clicked, and when its box is dragged over. */
export function useDragSelection(choosing: Choosing, rows: Rows): DragSelection {
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
