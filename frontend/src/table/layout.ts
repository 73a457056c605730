/** Where the columns of the table lie, and which of them are drawn. */
import { useCallback, useLayoutEffect, useMemo, useState, type RefObject } from "react";
import type { ColumnSpec } from "../state/address";
import { fittedWidths } from "./columns";

const CHECK = 30;
const DOT = 22;
const ADD = 32;
/** How far beside the window cells are drawn, in pixels: a sideways scroll finds them there. */
const SIDE_ROOM = 200;

export interface Layout {
  widths: readonly number[];
  template: string;
  width: number;
  /** How far from the left a pinned column stays; undefined for the others. */
  lefts: (number | undefined)[];
}

export function useLayout(columns: readonly ColumnSpec[], width: number, isGrouped: boolean): Layout {
  return useMemo(() => {
    const widths = fittedWidths(columns, width - CHECK - DOT - ADD, isGrouped);
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
  }, [columns, width, isGrouped]);
}

/** Return how wide the inside of an element is, without its scroll bar, in pixels. */
export function useInnerWidth(place: RefObject<HTMLElement | null>): number {
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
export function useShownColumns(
  scroller: RefObject<HTMLDivElement | null>,
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
