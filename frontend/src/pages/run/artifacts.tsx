/** What a run kept: pictures, sounds, tables, histograms, texts; each drawn as what it is. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { bytes, root, type Schema } from "../../api/client";
import { Dialog } from "../../parts/dialog";
import { Empty, Failure } from "../../parts/failure";
import { Icon } from "../../parts/icons";
import { Markdown } from "../../parts/markdown";
import { bytes as size, count, isLongInteger, number } from "../../state/format";
import { useShared } from "../../state/site";
import type { TabProps } from "./tab";
import { Rest, useLimited } from "../../parts/more";
import styles from "./artifacts.module.css";

type Artifact = Schema["ArtifactFacts"];

const MOST_TEXT = 200_000;
const MOST_SMALL = 20_000;
const MOST_ROWS = 500;
const MOST_FEW = 12;

export function Artifacts({ run, search, onChange }: TabProps) {
  const groups = useMemo(() => versionsOf(run.artifacts), [run.artifacts]);
  const steps = useMemo(() => stepsOf(groups), [groups]);
  const step = search.step ?? null;
  if (!groups.length) {
    return (
      <Empty title="This run kept nothing.">
        A file, a picture, a table:
        <code>run.artifact("confusion.png")</code>
      </Empty>
    );
  }
  const open = groups.find(([name]) => name === search.at);
  return (
    <>
      {steps.length > 1 && <StepSlider steps={steps} step={step} onStep={(fresh) => onChange({ step: fresh ?? undefined }, true)} />}
      <div className={styles.grid}>
        {groups.map(([name, versions]) => (
          <Card key={name} id={run.line.id} name={name} versions={versions} step={step} onOpen={() => onChange({ at: name })} />
        ))}
        {open && (
          <Dialog title={open[0]} size="large" isOpen onClose={() => onChange({ at: "" })}>
            <Shown id={run.line.id} versions={open[1]} step={step} isLarge />
          </Dialog>
        )}
      </div>
    </>
  );
}

/** Return artifacts by name: one name at several steps is one thing that changes, the newest version last. */
export function versionsOf(artifacts: readonly Artifact[]): [string, Artifact[]][] {
  const found = new Map<string, Artifact[]>();
  for (const artifact of artifacts) found.set(artifact.name, [...(found.get(artifact.name) ?? []), artifact]);
  for (const each of found.values()) each.sort((a, b) => (a.step ?? 0) - (b.step ?? 0) || a.at - b.at);
  return [...found];
}

/** Return the steps of all that changes, in order. */
function stepsOf(groups: readonly [string, Artifact[]][]): number[] {
  const found = new Set<number>();
  for (const [, versions] of groups) {
    if (versions.length > 1) for (const { step } of versions) if (step !== null) found.add(step);
  }
  return [...found].sort((a, b) => a - b);
}

/** Return which version is that of a step: the newest of then; -1 for none yet. */
function versionAt(versions: readonly Artifact[], step: number | null): number {
  return step === null ? versions.length - 1 : versions.findLastIndex((each) => each.step === null || each.step <= step);
}

/** One slider for all that a run kept at several steps; at its end it follows the newest. */
function StepSlider({ steps, step, onStep }: { steps: readonly number[]; step: number | null; onStep: (step: number | null) => void }) {
  const last = steps.length - 1;
  const at = step === null ? last : Math.max(0, steps.findLastIndex((each) => each <= step));
  return (
    <label className={styles.stepBar}>
      <span>Step of all</span>
      <input
        type="range"
        min={0}
        max={last}
        value={at}
        onChange={(event) => {
          const fresh = Number(event.target.value);
          onStep(fresh === last ? null : steps[fresh]!);
        }}
        aria-valuetext={`step ${steps[at]!}`}
      />
      <span className="quiet">
        step {count(steps[at]!)}
        {at === last && ", the newest"}
      </span>
    </label>
  );
}

interface CardProps {
  id: string;
  name: string;
  versions: Artifact[];
  step: number | null;
  onOpen: () => void;
}

function Card({ id, name, versions, step, onOpen }: CardProps) {
  const last = versions.at(-1)!;
  return (
    <figure className={styles.card} aria-label={name}>
      <figcaption className={styles.caption}>
        <button type="button" onClick={onOpen} title={name}>
          {name}
        </button>
        <span className="quiet">{size(last.size)}</span>
      </figcaption>
      <Shown id={id} versions={versions} step={step} />
    </figure>
  );
}

/** A version of an artifact: that of the step of all, or the one that its own slider was set to. */
function Shown({ id, versions, step, isLarge = false }: { id: string; versions: Artifact[]; step: number | null; isLarge?: boolean }) {
  const [own, setOwn] = useState<{ at: number; step: number | null } | null>(null);
  const at = own && own.step === step ? Math.min(own.at, versions.length - 1) : versionAt(versions, step);
  const setAt = (fresh: number) => setOwn(fresh === versions.length - 1 && step === null ? null : { at: fresh, step });
  const artifact = versions[Math.max(0, at)]!;
  return (
    <>
      <div className={styles.shown} data-large={isLarge || undefined}>
        {at < 0 ? <p className={styles.note}>nothing yet at step {count(step ?? 0)}</p> : <Content key={artifact.digest} id={id} artifact={artifact} isLarge={isLarge} />}
      </div>
      {versions.length > 1 && (
        <label className={styles.slider}>
          <span className="sr-only">Step</span>
          <input type="range" min={0} max={versions.length - 1} value={Math.max(0, at)} onChange={(event) => setAt(Number(event.target.value))} aria-valuetext={`step ${artifact.step ?? at}`} />
          <span className="quiet">{artifact.step === null ? `${at + 1} of ${versions.length}` : `step ${count(artifact.step)}`}</span>
        </label>
      )}
    </>
  );
}

function useUrl(id: string, digest: string): string {
  const { project } = useShared();
  return new URL(`api/runs/${id}/blobs/${digest}${project ? `?project=${project}` : ""}`, root).href;
}

/** An artifact as what it is: a picture, a sound, a table, a text, else a link to its bytes. */
export function Content({ id, artifact, isLarge = false }: { id: string; artifact: Artifact; isLarge?: boolean }) {
  const url = useUrl(id, artifact.digest);
  const [isAsked, setAsked] = useState(false);
  const [isBroken, setBroken] = useState(false);
  if (artifact.problem) return <p className={styles.note}>{artifact.problem}</p>;
  if (artifact.media === "image") {
    if (artifact.isTooLarge && !isAsked) {
      const megapixels = number((artifact.width * artifact.height) / 1e6);
      return (
        <p className={styles.note}>
          {count(artifact.width)} x {count(artifact.height)}, {megapixels} megapixels: it may take {size(artifact.width * artifact.height * 4)} of memory to draw.
          <span>
            <button type="button" onClick={() => setAsked(true)}>
              Draw it
            </button>
            <a href={url} download={artifact.name}>
              Download
            </a>
          </span>
        </p>
      );
    }
    if (isBroken) return <p className={styles.note}>This picture cannot be drawn. <a href={url} download={artifact.name}>Download</a></p>;
    return (
      <img
        src={url}
        alt={artifact.name}
        loading="lazy"
        className={styles.image}
        data-small={artifact.width > 0 && artifact.width <= 128 ? true : undefined}
        style={artifact.width ? { aspectRatio: `${artifact.width} / ${artifact.height}` } : undefined}
        onError={() => setBroken(true)}
      />
    );
  }
  // What a run recorded has no captions.
  // eslint-disable-next-line jsx-a11y/media-has-caption
  if (artifact.media === "audio") return <audio controls preload="metadata" src={url} className={styles.audio} />;
  // eslint-disable-next-line jsx-a11y/media-has-caption
  if (artifact.media === "video") return <video controls preload="metadata" src={url} className={styles.image} />;
  if (artifact.contentType.startsWith("text/plain") && artifact.size <= MOST_TEXT * 5) return <TextContent id={id} artifact={artifact} isLarge={isLarge} />;
  return (
    <p className={styles.note}>
      <Icon name="file" size={24} />
      <a href={url} download={artifact.name}>
        Download
      </a>
    </p>
  );
}

function TextContent({ id, artifact, isLarge }: { id: string; artifact: Artifact; isLarge: boolean }) {
  const { project } = useShared();
  const text = useQuery({
    queryKey: ["blob", project, id, artifact.digest],
    queryFn: async () => new TextDecoder().decode(await bytes(`api/runs/${id}/blobs/${artifact.digest}${project ? `?project=${project}` : ""}`)),
    staleTime: Infinity,
  });
  if (text.error) return <Failure error={text.error} />;
  if (text.data === undefined) return null;
  const most = isLarge ? MOST_TEXT : MOST_SMALL;
  const shown = text.data.slice(0, most);
  if (artifact.kind === "histogram") return <Histogram text={text.data} />;
  if (artifact.kind === "table" || /\.csv$/i.test(artifact.name)) return <CsvTable text={text.data} most={isLarge ? MOST_ROWS : MOST_FEW} />;
  if (/\.md$/i.test(artifact.name)) return <Markdown text={text.data} />;
  return (
    <>
      <pre className={styles.text}>{shown}</pre>
      <Rest count={text.data.length - most} of="characters" at={isLarge ? "its file has them" : "enlarge it"} />
    </>
  );
}

interface HistogramData {
  edges: number[];
  counts: number[];
  non_finite?: number;
}

function Histogram({ text }: { text: string }) {
  const found = useMemo((): HistogramData | null => {
    try {
      const data = JSON.parse(text) as HistogramData;
      return Array.isArray(data.edges) && Array.isArray(data.counts) ? data : null;
    } catch {
      return null;
    }
  }, [text]);
  if (!found) return <pre className={styles.text}>{text}</pre>;
  const most = Math.max(1, ...found.counts);
  const first = found.edges[0] ?? 0;
  const last = found.edges.at(-1) ?? 1;
  const total = found.counts.reduce((sum, each) => sum + each, 0);
  return (
    <div className={styles.histogram}>
      <svg viewBox={`0 0 ${found.counts.length} 100`} preserveAspectRatio="none" role="img" aria-label={`${count(total)} values from ${number(first)} to ${number(last)}`}>
        {found.counts.map((each, at) => (
          <rect key={at} x={at + 0.05} width={0.9} y={100 - (100 * each) / most} height={(100 * each) / most} fill="var(--accent)" />
        ))}
      </svg>
      <div className={styles.edges}>
        <span>{number(first)}</span>
        <span className="quiet">
          {count(total)} values{found.non_finite ? `, ${count(found.non_finite)} not finite` : ""}
        </span>
        <span>{number(last)}</span>
      </div>
    </div>
  );
}

function CsvTable({ text, most }: { text: string; most: number }) {
  const [head = [], ...all] = useMemo(() => parseCsv(text), [text]);
  const [body, more] = useLimited(all, most);
  return (
    <div className={styles.tableBox}>
      <table className={styles.table}>
        <thead>
          <tr>
            {head.map((cell, at) => (
              <th key={at}>{cell}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {body.map((row, at) => (
            <tr key={at}>
              {row.map((cell, column) => (
                <td key={column} title={cell} className={cell !== "" && Number.isFinite(Number(cell)) ? "number" : undefined}>
                  {cell !== "" && Number.isFinite(Number(cell)) && !isLongInteger(cell) ? number(Number(cell)) : cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {more}
    </div>
  );
}

/** Return the rows of a CSV text. */
export function parseCsv(text: string): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let cell = "";
  let isQuoted = false;
  for (let i = 0; i < text.length; i++) {
    const char = text[i]!;
    if (isQuoted) {
      if (char === '"' && text[i + 1] === '"') {
        cell += '"';
        i += 1;
      } else if (char === '"') isQuoted = false;
      else cell += char;
    } else if (char === '"') isQuoted = true;
    else if (char === ",") {
      row.push(cell);
      cell = "";
    } else if (char === "\n") {
      row.push(cell.replace(/\r$/, ""));
      rows.push(row);
      row = [];
      cell = "";
    } else cell += char;
  }
  if (cell || row.length) rows.push([...row, cell]);
  return rows;
}
