/** What an axis bar and its panels share: the part of the address that says what is drawn, and the layout. */
import { useMemo } from "react";
import { axisOf, parsePanel, parseZoom, showPanel, showZoom, type ChartSearch, type PanelOptions, type Zoom } from "../state/address";
import { useKept } from "../state/local";
import { useShared } from "../state/site";
import { layoutOf, type Layout } from "./layout";

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
  const options = useMemo(() => new Map((search.o ?? []).map(parsePanel).filter((each) => each !== null)), [search.o]);
  const onZoom = (fresh: Zoom | null) => onChange({ z: showZoom(fresh) });
  const shared = { axis, zoom, metrics, filter: search.p ?? "", onZoom };
  return {
    bar: {
      ...shared,
      onAxis: (changes: ChartSearch) => onChange(changes, true),
      onFilter: (p: string) => onChange({ p }, true),
      onPair: (pair: { x: string; y: string }) => onLayout({ ...layout, pairs: [...layout.pairs, pair] }),
    },
    panels: {
      ...shared,
      layout,
      onLayout,
      options,
      onOptions: (key: string, fresh: PanelOptions) => onChange({ o: [...new Map(options).set(key, fresh)].map(([name, each]) => showPanel(name, each)).filter(Boolean) }, true),
      large: search.big ?? "",
      onLarge: (big: string) => onChange({ big }),
    },
  };
}
