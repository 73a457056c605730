/** Scatter plot of the metric over one key; a run that is not chosen is pale. */
import { useEffect, useRef } from "react";
import { useWidth } from "./parallel";
import { type Scale } from "./scale";
import { prepared, shades, SHADES } from "./shades";
import styles from "./parameters.module.css";

interface ScatterProps {
  x: Scale;
  y: Scale;
  places: ReadonlyMap<string, readonly (number | null)[]>;
  chosen: readonly number[];
  rows: number;
  isDark: boolean;
}

const HEIGHT = 260;
const LEFT = 56;
const BOTTOM = 46;
const PAD = 12;

export function Scatter({ x, y, places, chosen, rows, isDark }: ScatterProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  const across = (at: number) => LEFT + at * (width - LEFT - PAD);
  const up = (at: number) => HEIGHT - BOTTOM - at * (HEIGHT - BOTTOM - PAD);
  useEffect(() => {
    if (!canvas.current || !width) return;
    const context = prepared(canvas.current, width, HEIGHT);
    const strokes = shades(isDark);
    const xs = places.get(x.name) ?? [];
    const ys = places.get(y.name) ?? [];
    const isChosen = new Set(chosen);
    const radius = rows > 2000 ? 1.5 : 3;
    const dot = (row: number) => {
      const [h, v] = [xs[row] ?? null, ys[row] ?? null];
      if (h === null || v === null) return;
      context.beginPath();
      context.arc(across(h), up(v), radius, 0, 7);
      context.fill();
    };
    context.fillStyle = strokes[0]!;
    context.globalAlpha = 0.5;
    for (let row = 0; row < rows; row++) if (!isChosen.has(row)) dot(row);
    context.fillStyle = strokes[SHADES - 1]!;
    context.globalAlpha = rows > 2000 ? 0.4 : 0.8;
    for (const row of chosen) dot(row);
  });
  return (
    <div ref={box} className={styles.scatter} style={{ height: HEIGHT }} data-scatter={x.name}>
      <canvas ref={canvas} aria-hidden="true" style={{ width: "100%", height: HEIGHT }} />
      {width > 0 && (
        <>
          <span className={styles.yName}>{y.name}</span>
          <span className={styles.xName}>{x.name}</span>
          {y.ticks.map((tick) => (
            <span key={`y${tick.at}`} className={styles.yTick} style={{ top: up(tick.at) }}>
              {tick.text}
            </span>
          ))}
          {x.ticks.map((tick) => (
            <span key={`x${tick.at}`} className={styles.xTick} style={{ left: across(tick.at) }}>
              {tick.text}
            </span>
          ))}
        </>
      )}
    </div>
  );
}
