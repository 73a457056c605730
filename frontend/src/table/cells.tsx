/** What stands in a cell of the table of runs. */
import { memo, useEffect, useRef } from "react";
import type { GroupLine, RunLine, Schema } from "../api/client";
import type { Curve } from "../api/curves";
import { Icon, type IconName } from "../parts/icons";
import { age, cell, count, duration, moment, number, whole } from "../state/format";
import { cause, isFact, STATUS_WORDS } from "./columns";
import styles from "./table.module.css";

const ICONS: Record<string, IconName> = {
  running: "play",
  finished: "check",
  failed: "cross",
  stopped: "stop",
  killed: "cross",
  unknown: "question",
  damaged: "warning",
  lost: "question",
};

export function Status({ run }: { run: Pick<RunLine, "status" | "reason"> }) {
  const why = cause(run);
  const word = STATUS_WORDS[run.status] ?? run.status;
  return (
    <span className={styles.status} data-status={run.status} title={run.reason ? `${word}: ${run.reason}` : word}>
      <Icon name={ICONS[run.status] ?? "question"} size={14} />
      <span className="ellipsis">{why || word}</span>
    </span>
  );
}

/** A curve in the height of a row. */
export const Spark = memo(function Spark({ curve, color, width }: { curve: Curve; color: string; width: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const to = canvas.current?.getContext("2d");
    if (!to) return;
    const ratio = devicePixelRatio;
    const height = 16;
    to.canvas.width = width * ratio;
    to.canvas.height = height * ratio;
    if (!curve.xs.length) return;
    const { xs, means, first, last } = curve;
    let low = Infinity;
    let high = -Infinity;
    for (const value of means) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (!(low <= high)) return;
    const right = width - 2;
    const x = (value: number) => 1 + (last > first ? ((value - first) / (last - first)) * right : right / 2);
    const y = (value: number) => (high > low ? 2 + (1 - (value - low) / (high - low)) * (height - 4) : height / 2);
    to.setTransform(ratio, 0, 0, ratio, 0, 0);
    to.strokeStyle = color;
    to.lineWidth = 1.2;
    to.lineJoin = "round";
    to.beginPath();
    for (let i = 0; i < xs.length; i++) {
      if (Number.isFinite(means[i]!)) to.lineTo(x(xs[i]!), y(means[i]!));
    }
    to.stroke();
  }, [curve, color, width]);
  return <canvas ref={canvas} className={styles.spark} style={{ width, height: 16 }} aria-hidden="true" />;
});

/** The name of a run or group among those that are shown, whole and in few characters. */
export interface ShownName {
  label: string;
  short: string;
}

interface CellProps {
  run: RunLine;
  shownName: ShownName | undefined;
  name: string;
  value: unknown;
  now: number;
  fetchedAt: number;
  spark: Curve | undefined;
  color: string;
}

/** Return what a cell says in full: its content may be shortened. */
export function runTitle(run: RunLine, name: string, value: unknown, shownName: ShownName | undefined): string | undefined {
  if (!isFact(name)) return whole(value);
  switch (name) {
    case "tag":
      return [...new Set([shownName?.label, run.tag, run.id])].filter(Boolean).join(" · ");
    case "duration":
      return run.duration === null ? undefined : `${run.duration} s`;
    case "age":
      return moment(run.created);
    case "best":
      return run.best ? `${run.best.metric} ${whole(run.best.value)}${run.best.step === null ? "" : ` at step ${count(run.best.step)}`}` : undefined;
    case "reason":
      return run.reason;
    default:
      return undefined;
  }
}

/** The content of one cell. */
export function RunCell({ run, shownName, name, value, now, fetchedAt, spark, color }: CellProps) {
  if (!isFact(name)) return cell(value);
  switch (name) {
    case "status":
      return <Status run={run} />;
    case "tag":
      return shownName?.short || run.tag || <span className="quiet">{run.id}</span>;
    case "best":
      return <Best run={run} spark={spark} color={color} />;
    case "duration": {
      const extra = run.status === "running" ? Math.max(0, now - fetchedAt) : 0;
      return run.duration === null ? "" : duration(run.duration + extra);
    }
    case "age":
      return age(run.created, now);
    case "created":
      return moment(run.created).slice(0, 16);
    case "step":
      return count(run.step);
    case "attempts":
      return run.attempts;
    case "labels":
      return <Labels labels={run.labels} />;
    case "reason":
      return run.reason;
    case "id":
      return <code>{run.id}</code>;
  }
}

function Best({ run, spark, color }: { run: RunLine; spark: Curve | undefined; color: string }) {
  if (!run.best) return <span className="quiet">-</span>;
  const { value } = run.best;
  return (
    <span className={styles.best}>
      <span className={styles.bestValue}>{typeof value === "number" ? number(value) : value}</span>
      {spark && <Spark curve={spark} color={color} width={64} />}
    </span>
  );
}

export function Labels({ labels }: { labels: readonly string[] }) {
  return (
    <span className={styles.labels} title={labels.join(", ")}>
      {labels.map((label) => (
        <span key={label} className={styles.label}>
          {label}
        </span>
      ))}
    </span>
  );
}

/** The content of a cell of a group: mean and deviation of numbers, what all have alike, or nothing. */
export function GroupCell({ group, name, value, now }: { group: GroupLine; name: string; value: unknown; now: number }) {
  if (name === "tag") {
    return (
      <span title={[group.name, ...group.warnings].join("\n")}>
        {group.short} <Warnings of={group.warnings} />
      </span>
    );
  }
  if (name === "age") return <span title={moment(group.newest.created)}>{age(group.newest.created, now)}</span>;
  if (isSpread(value)) return <Spread value={value} isTime={name === "duration"} />;
  if (value === null || value === undefined) return <span className="quiet">-</span>;
  return <span title={whole(value)}>{cell(value)}</span>;
}

/** What to know before means are believed, where they stand. */
export function Warnings({ of }: { of: readonly string[] }) {
  if (!of.length) return null;
  return (
    <span className={styles.warning} role="img" aria-label={of.join("; ")} title={of.join("\n")}>
      <Icon name="warning" size={13} />
    </span>
  );
}

/** Mean and sample deviation of several runs. */
export function Spread({ value, isTime = false }: { value: Schema["Spread"]; isTime?: boolean }) {
  const { mean, std } = value;
  if (isTime) return <span title={`mean of ${value.count}`}>{duration(mean)}</span>;
  const digits = std ? Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(std)))) : null;
  const shown = digits === null || Math.abs(mean) >= 1e6 ? number(mean) : mean.toFixed(digits);
  return (
    <span title={`mean ${mean}, sample deviation ${std ?? "unknown"}, n = ${value.count}`}>
      {shown}
      {std !== null && std > 0 && <span className="quiet"> ± {digits === null ? number(std) : std.toFixed(digits)}</span>}
    </span>
  );
}

function isSpread(value: unknown): value is Schema["Spread"] {
  return typeof value === "object" && value !== null && "mean" in value;
}
