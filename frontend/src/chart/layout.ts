/** How panels are laid out: which are pinned, in which order, how large, what is drawn together. */

export interface PanelSize {
  /** How many columns of the grid. */
  w: number;
  /** Pixels of the chart. */
  h: number;
}

export interface Pair {
  x: string;
  y: string;
}

export interface Layout {
  pinned: string[];
  order: string[];
  sizes: Record<string, PanelSize>;
  /** Several metrics in one panel, by its name. */
  merged: Record<string, string[]>;
  /** One metric against another: y by x. */
  pairs: Pair[];
  closed: Record<string, boolean>;
}

export const EMPTY_LAYOUT: Layout = { pinned: [], order: [], sizes: {}, merged: {}, pairs: [], closed: {} };
export const DEFAULT_HEIGHT = 170;
const LEAST_HEIGHT = 110;
const MOST_HEIGHT = 720;

/** Return a layout out of what a file or the browser kept; what it lacks is empty. */
export function layoutOf(data: unknown): Layout {
  const found = typeof data === "object" && data !== null ? (data as Partial<Layout>) : {};
  return {
    pinned: strings(found.pinned),
    order: strings(found.order),
    sizes: records(found.sizes),
    merged: Object.fromEntries(Object.entries(records<unknown>(found.merged)).map(([name, metrics]) => [name, strings(metrics)])),
    pairs: Array.isArray(found.pairs) ? found.pairs.filter(isPair) : [],
    closed: records(found.closed),
  };
}

function isPair(value: unknown): value is Pair {
  const pair = typeof value === "object" && value !== null ? (value as Partial<Pair>) : {};
  return typeof pair.x === "string" && typeof pair.y === "string";
}

function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((each): each is string => typeof each === "string") : [];
}

function records<T>(value: unknown): Record<string, T> {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, T>) : {};
}

/** One panel: a metric, several of them, or one against another. */
export interface PanelSpec {
  key: string;
  title: string;
  metrics: string[];
  /** The metric on the x axis, where it is not that of the page. */
  x?: string;
}

export interface Section {
  name: string;
  panels: PanelSpec[];
}

const SYSTEM = ["speed", "time", "memory", "gpu", "system", "compile"];
const FIRST = ["train", "valid", "test"];
const MOST_OPEN = 24;

/** Return the sections of a page: what is pinned first, then by prefix, those of the machine last. */
export function sectionsOf(metrics: readonly string[], layout: Layout, filter: string): Section[] {
  const known = new Set(metrics);
  const inside = new Set(Object.values(layout.merged).flat());
  const specs: PanelSpec[] = metrics.filter((metric) => !inside.has(metric)).map((metric) => ({ key: metric, title: shortTitle(metric), metrics: [metric] }));
  for (const [name, merged] of Object.entries(layout.merged)) {
    const here = merged.filter((metric) => known.has(metric));
    if (here.length) specs.push({ key: `${prefixOf(here[0]!)}/${name}`, title: name, metrics: here });
  }
  for (const { x, y } of layout.pairs) {
    if (known.has(x) && known.has(y)) specs.push({ key: `${y} by ${x}`, title: `${shortTitle(y)} by ${x}`, metrics: [y], x });
  }
  const place = new Map(layout.order.map((key, at) => [key, at]));
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = specs.filter((spec) => words.every((word) => [spec.key, ...spec.metrics].some((name) => name.toLowerCase().includes(word))));
  const sections = new Map<string, PanelSpec[]>();
  const pinned = new Set(layout.pinned);
  for (const spec of shown) {
    const isPinned = pinned.has(spec.key);
    const name = isPinned ? "pinned" : prefixOf(spec.metrics[0]!);
    // Away from its section a panel needs its whole name.
    const shownSpec = isPinned && spec.metrics.length === 1 && !spec.x ? { ...spec, title: spec.key } : spec;
    sections.set(name, [...(sections.get(name) ?? []), shownSpec]);
  }
  const rank = (name: string): number => {
    if (name === "pinned") return -1;
    if (SYSTEM.includes(name)) return 100 + SYSTEM.indexOf(name);
    return FIRST.includes(name) ? FIRST.indexOf(name) : 10;
  };
  return [...sections]
    .map(([name, panels]) => ({
      name,
      panels: panels.sort((a, b) => (place.get(a.key) ?? 1e6) - (place.get(b.key) ?? 1e6) || (a.title < b.title ? -1 : 1)),
    }))
    .sort((a, b) => rank(a.name) - rank(b.name) || (a.name < b.name ? -1 : 1));
}

/** Return which sections are open: those of the machine are not, nor what comes after very many panels. A filter opens all. */
export function openSections(sections: readonly Section[], layout: Layout, filter: string): Set<string> {
  if (filter) return new Set(sections.map((section) => section.name));
  const found = new Set<string>();
  let panels = 0;
  for (const { name, panels: inside } of sections) {
    const isOpen = name in layout.closed ? !layout.closed[name] : !SYSTEM.includes(name) && panels < MOST_OPEN;
    if (!isOpen) continue;
    found.add(name);
    panels += inside.length;
  }
  // With nothing else to see, the first section is.
  if (!found.size && sections[0] && !(sections[0].name in layout.closed)) found.add(sections[0].name);
  return found;
}

/** Return the metrics of the panels that are open. */
export function openMetrics(metrics: readonly string[], layout: Layout, filter: string): string[] {
  const sections = sectionsOf(metrics, layout, filter);
  const open = openSections(sections, layout, filter);
  return sections.flatMap((section) => (open.has(section.name) ? section.panels.flatMap((panel) => (panel.x ? [] : panel.metrics)) : []));
}

export function prefixOf(metric: string): string {
  return metric.includes("/") ? metric.slice(0, metric.indexOf("/")) : "metrics";
}

function shortTitle(metric: string): string {
  return metric.includes("/") ? metric.slice(metric.indexOf("/") + 1) : metric;
}

/** Put a panel in front of another one of its section. */
export function movedPanel(layout: Layout, panels: readonly PanelSpec[], key: string, before: string): Layout {
  const keys = panels.map((panel) => panel.key).filter((each) => each !== key);
  const at = keys.indexOf(before);
  const from = panels.findIndex((panel) => panel.key === key);
  const to = panels.findIndex((panel) => panel.key === before);
  keys.splice(at + (from < to ? 1 : 0), 0, key);
  return { ...layout, order: [...layout.order.filter((each) => !keys.includes(each)), ...keys] };
}

export function sizeOf(layout: Layout, key: string): PanelSize {
  const { w = 1, h = DEFAULT_HEIGHT } = layout.sizes[key] ?? {};
  return { w: Math.max(1, Math.min(6, Math.round(w))), h: Math.max(LEAST_HEIGHT, Math.min(MOST_HEIGHT, Math.round(h))) };
}
