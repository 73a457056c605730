/** Panels of curves: one for each metric, in sections by prefix; those out of sight cost nothing. */
import { useEffect, useMemo, useRef, useState, type PointerEvent } from "react";
import { Icon } from "../parts/icons";
import type { Axis, PanelOptions, Zoom } from "../state/address";
import type { Style } from "../state/colors";
import { movedPanel, openSections, sectionsOf, sizeOf, type Layout, type PanelSpec, type Section } from "./layout";
import { Panel, type PanelRun } from "./panel";
import type { Mark } from "./plot";
import type { Sheet } from "./sheets";
import { useSheet } from "./use-sheet";
import styles from "./panels.module.css";

interface PanelsProps {
  runs: readonly PanelRun[];
  looks: ReadonlyMap<string, Style>;
  metrics: readonly string[];
  axis: Axis;
  zoom: Zoom | null;
  filter: string;
  layout: Layout;
  /** Settings of panels by their names. */
  options?: ReadonlyMap<string, PanelOptions>;
  /** The panel that is enlarged. */
  large?: string;
  marks?: readonly Mark[] | undefined;
  /** Charts of one place share their cursor. */
  place: string;
  /** Whether the panels stand without their sections. */
  isFlat?: boolean;
  onZoom: (zoom: Zoom | null) => void;
  onLayout: (layout: Layout) => void;
  onOptions: (key: string, options: PanelOptions) => void;
  onLarge: (key: string) => void;
}

const AS_ALL: PanelOptions = {};

export function Panels(props: PanelsProps) {
  const { runs, metrics, axis, zoom, filter, layout, onLayout } = props;
  const sheet = useSheet(axis, zoom, runs.some((run) => run.members));
  const sections = useMemo(() => sectionsOf(metrics, layout, filter), [metrics, layout, filter]);
  const open = openSections(sections, layout, filter);
  if (!sections.length) return <p className={styles.none}>{filter ? "No panel is called that." : ""}</p>;
  return (
    <div className={styles.panels}>
      {sections.map((section) => {
        const isOpen = open.has(section.name);
        if (props.isFlat) return <Grid key={section.name} {...props} section={section} sheet={sheet} />;
        return (
          <section key={section.name} className={styles.section} aria-label={section.name}>
            <h2 className={styles.title}>
              <button
                type="button"
                aria-expanded={isOpen}
                onClick={() => onLayout({ ...layout, closed: { ...layout.closed, [section.name]: isOpen } })}
              >
                <Icon name={isOpen ? "chevron" : "right"} size={14} />
                {section.name} <span className="quiet">{section.panels.length}</span>
              </button>
            </h2>
            {isOpen && <Grid {...props} section={section} sheet={sheet} />}
          </section>
        );
      })}
    </div>
  );
}

interface GridProps extends PanelsProps {
  section: Section;
  sheet: Sheet;
}

const COLUMN = 280;
const GAP = 12;

function Grid({ section, sheet, looks, runs, metrics, axis, zoom, layout, marks, place, options, large, onZoom, onLayout, onOptions, onLarge }: GridProps) {
  const [grid, columns] = useColumns();
  const drag = usePanelDrag(section.panels, layout, onLayout);
  return (
    <div ref={grid} className={styles.grid}>
      {section.panels.map((spec) => {
        const size = sizeOf(layout, spec.key);
        return (
          <div key={spec.key} className={styles.slot} style={{ gridColumn: `span ${Math.min(size.w, columns)}` }} data-panel={spec.key}>
            <Panel
              spec={spec}
              runs={runs}
              metrics={metrics}
              looks={looks}
              sheet={sheet}
              axis={axis}
              zoom={zoom}
              marks={marks}
              group={place}
              height={size.h}
              layout={layout}
              panels={section.panels}
              options={options?.get(spec.key) ?? AS_ALL}
              isLarge={large === spec.key}
              onOptions={(fresh) => onOptions(spec.key, fresh)}
              onLarge={(isLarge) => onLarge(isLarge ? spec.key : "")}
              onZoom={onZoom}
              onLayout={onLayout}
              onGrab={(event) => drag(spec, event)}
            />
            <span
              className={styles.corner}
              aria-hidden="true"
              onPointerDown={(event) => resize(event, grid.current!, size, (fresh) => onLayout({ ...layout, sizes: { ...layout.sizes, [spec.key]: fresh } }))}
            />
          </div>
        );
      })}
    </div>
  );
}

/** Return how many columns the grid has: a panel is never wider than that. */
function useColumns(): [React.RefObject<HTMLDivElement | null>, number] {
  const grid = useRef<HTMLDivElement>(null);
  const [columns, setColumns] = useState(1);
  useEffect(() => {
    // The observer may call once more after the grid has left the document: the element is kept, the reference is not.
    const element = grid.current!;
    const observer = new ResizeObserver(() => setColumns(Math.max(1, Math.floor((element.clientWidth + GAP) / (COLUMN + GAP)))));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [grid, columns];
}

function resize(event: PointerEvent, grid: HTMLElement, before: { w: number; h: number }, onSize: (size: { w: number; h: number }) => void): void {
  event.preventDefault();
  const { clientX, clientY } = event;
  const columns = Math.max(1, Math.floor((grid.clientWidth + GAP) / (COLUMN + GAP)));
  const column = grid.clientWidth / columns;
  let last = "";
  const move = (each: globalThis.PointerEvent) => {
    const size = {
      w: Math.max(1, Math.min(columns, Math.round(before.w + (each.clientX - clientX) / column))),
      h: Math.round((before.h + each.clientY - clientY) / 10) * 10,
    };
    const key = `${size.w} ${size.h}`;
    if (key !== last) onSize(size);
    last = key;
  };
  const up = () => {
    window.removeEventListener("pointermove", move);
    window.removeEventListener("pointerup", up);
  };
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", up);
}

/** Let a panel be dragged by its title to the place of another one. */
function usePanelDrag(panels: readonly PanelSpec[], layout: Layout, onLayout: (layout: Layout) => void) {
  return (spec: PanelSpec, event: PointerEvent) => {
    if (event.button !== 0) return;
    const { clientX, clientY } = event;
    let target: HTMLElement | null = null;
    const move = (each: globalThis.PointerEvent) => {
      if (Math.hypot(each.clientX - clientX, each.clientY - clientY) < 8) return;
      target?.removeAttribute("data-drop");
      const over = document.elementFromPoint(each.clientX, each.clientY)?.closest<HTMLElement>("[data-panel]") ?? null;
      const isHere = over !== null && over.dataset.panel !== spec.key && panels.some((panel) => panel.key === over.dataset.panel);
      target = isHere ? over : null;
      target?.setAttribute("data-drop", "true");
    };
    const up = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      target?.removeAttribute("data-drop");
      if (target) onLayout(movedPanel(layout, panels, spec.key, target.dataset.panel!));
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
  };
}
