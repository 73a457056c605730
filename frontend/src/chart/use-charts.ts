/** What an axis bar and its panels share: the part of the address that says what is drawn, and the layout. */
import { useMemo } from "react";
import { axisOf, parseZoom, showZoom, type Zoom } from "../state/address";
import { useKept } from "../state/local";
import { useShared } from "../state/site";
import { layoutOf, type Layout } from "./layout";

/** The part of an address that says how curves are drawn. */
interface ChartSearch {
  x?: string;
  logx?: boolean;
  smooth?: number;
  z?: string;
  p?: string;
}

type Change = (changes: ChartSearch, stays?: boolean) => void;

/** Return the layout of the project's panels, which this browser keeps. */
export function useLayout(): [Layout, (layout: Layout) => void] {
  const { project } = useShared();
  return useKept<Layout>(`layout.${project}`, layoutOf(null));
}

/** Return the props of an axis bar and of its panels. */
export function useCharts(search: ChartSearch, onChange: Change, [layout, onLayout]: [Layout, (layout: Layout) => void], metrics: readonly string[]) {
  const zoom = useMemo(() => parseZoom(search.z), [search.z]);
  const { x, logx, smooth } = search;
  const axis = useMemo(() => axisOf({ x, logx, smooth }), [x, logx, smooth]);
  const onZoom = (fresh: Zoom | null) => onChange({ z: showZoom(fresh) });
  const shared = { axis, zoom, metrics, filter: search.p ?? "", onZoom };
  return {
    bar: {
      ...shared,
      onAxis: (changes: ChartSearch) => onChange(changes, true),
      onFilter: (p: string) => onChange({ p }, true),
      onPair: (pair: { x: string; y: string }) => onLayout({ ...layout, pairs: [...layout.pairs, pair] }),
    },
    panels: { ...shared, layout, onLayout },
  };
}
