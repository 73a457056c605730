/** Parallel coordinates: an axis for each key, a line for each run. Dragging on an axis chooses a part of it. */
import { useEffect, useRef, useState, type PointerEvent } from "react";
import { shadeOf, type Brush, type Scale } from "./scale";
import { prepared, SHADES, shades } from "./shades";
import styles from "./parameters.module.css";

interface ParallelProps {
  scales: readonly Scale[];
  places: ReadonlyMap<string, readonly (number | null)[]>;
  rows: number;
  chosen: readonly number[];
  brushes: readonly Brush[];
  metric: string;
  /** Whether small values of the metric are good, which strong lines show. */
  isLow: boolean;
  isDark: boolean;
  onBrush: (name: string, range: { low: number; high: number } | null) => void;
}

const HEIGHT = 300;
const TOP = 34;
const BOTTOM = 14;
const SIDE = 60;
/** Pixels from an axis to the next, at least; what is wider than the screen scrolls. */
const LEAST_GAP = 112;
/** A drag that is shorter than this, in pixels, is a click: it takes the brush away. */
const LEAST_DRAG = 4;
/** Pixels from an end of an axis that count as the end: the extreme values lie there. */
const SNAP = 5;

export function Parallel({ scales, places, rows, chosen, brushes, metric, isLow, isDark, onBrush }: ParallelProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = Math.max(useWidth(box), scales.length * LEAST_GAP);
  const across = (index: number) => (scales.length < 2 ? width / 2 : SIDE + (index * (width - 2 * SIDE)) / (scales.length - 1));
  const up = (at: number) => HEIGHT - BOTTOM - at * (HEIGHT - TOP - BOTTOM);

  useEffect(() => {
    if (!canvas.current || !width) return;
    const context = prepared(canvas.current, width, HEIGHT);
    const columns = scales.map((scale) => places.get(scale.name) ?? []);
    const strokes = shades(isDark);
    const metricColumn = places.get(metric) ?? [];
    const buckets: number[][] = Array.from({ length: SHADES }, () => []);
    for (const row of chosen) buckets[shadeOf(metricColumn[row] ?? null, SHADES, isLow)]!.push(row);
    const draw = (list: readonly number[], color: string, alpha: number) => {
      context.strokeStyle = color;
      context.globalAlpha = alpha;
      context.beginPath();
      for (const row of list) {
        let isDown = false;
        columns.forEach((column, index) => {
          const at = column[row] ?? null;
          if (at === null) isDown = false;
          else if (isDown) context.lineTo(across(index), up(at));
          else {
            context.moveTo(across(index), up(at));
            isDown = true;
          }
        });
      }
      context.stroke();
    };
    if (chosen.length < rows) {
      const isChosen = new Set(chosen);
      draw(Array.from({ length: rows }, (_, row) => row).filter((row) => !isChosen.has(row)), strokes[0]!, 0.25);
    }
    // The more lines there are, the thinner each: 10,000 would be one patch of colour.
    const alpha = Math.max(0.15, Math.min(1, 120 / Math.max(1, chosen.length)));
    buckets.forEach((list, shade) => draw(list, strokes[shade]!, alpha));
  });

  return (
    <div ref={box} className={styles.parallel} style={{ height: HEIGHT }}>
      <canvas ref={canvas} aria-hidden="true" style={{ width, height: HEIGHT }} />
      {width > 0 &&
        scales.map((scale, index) => (
          <Axis
            key={scale.name}
            scale={scale}
            left={across(index)}
            up={up}
            isMetric={scale.name === metric}
            brush={brushes.find((each) => each.name === scale.name) ?? null}
            onBrush={(range) => onBrush(scale.name, range)}
          />
        ))}
    </div>
  );
}

interface AxisProps {
  scale: Scale;
  left: number;
  up: (at: number) => number;
  isMetric: boolean;
  brush: Brush | null;
  onBrush: (range: { low: number; high: number } | null) => void;
}

function Axis({ scale, left, up, isMetric, brush, onBrush }: AxisProps) {
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const placeOf = (event: PointerEvent) => {
    const { top } = event.currentTarget.getBoundingClientRect();
    const at = event.clientY - top;
    if (at < TOP + SNAP) return TOP;
    return at > HEIGHT - BOTTOM - SNAP ? HEIGHT - BOTTOM : at;
  };
  const share = (y: number) => (HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM);
  const shown = drag ? { low: share(Math.max(drag.from, drag.to)), high: share(Math.min(drag.from, drag.to)) } : brush;
  return (
    <div
      className={styles.axis}
      data-metric={isMetric || undefined}
      data-axis={scale.name}
      style={{ left }}
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        const at = placeOf(event);
        setDrag({ from: at, to: at });
      }}
      onPointerMove={(event) => {
        if (drag) setDrag({ ...drag, to: placeOf(event) });
      }}
      onPointerUp={() => {
        if (!drag) return;
        const isClick = Math.abs(drag.from - drag.to) < LEAST_DRAG;
        onBrush(isClick ? null : { low: share(Math.max(drag.from, drag.to)), high: share(Math.min(drag.from, drag.to)) });
        setDrag(null);
      }}
    >
      <span className={styles.axisName} title={scale.name}>
        {scale.name}
      </span>
      <span className={styles.rule} style={{ top: TOP, height: HEIGHT - TOP - BOTTOM }} />
      {scale.ticks.map((tick) => (
        <span key={`${tick.at}`} className={styles.tick} style={{ top: up(tick.at) }}>
          {tick.text}
        </span>
      ))}
      {shown && <span className={styles.brush} style={{ top: up(shown.high), height: Math.max(2, up(shown.low) - up(shown.high)) }} />}
    </div>
  );
}

/** Return the width of an element in pixels, again when it changes. */
export function useWidth(box: React.RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(entry!.contentRect.width));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, [box]);
  return width;
}
