/** What a run was for, what came out, what it took. */
import { useMemo, useState, type SyntheticEvent } from "react";
import { api, ApiError, data, type Schema } from "../../api/client";
import { Panels } from "../../chart/panels";
import { EMPTY_LAYOUT } from "../../chart/layout";
import { Button } from "../../parts/button";
import { CopyLine } from "../../parts/copy";
import { Markdown } from "../../parts/markdown";
import { Rest, useLimited } from "../../parts/more";
import { complain, say } from "../../parts/toast";
import { age, cell, count, duration, isLongInteger, moment, number, whole } from "../../state/format";
import { showPanel } from "../../state/address";
import { useStyles } from "../../state/colors";
import { useRunMarks } from "../../state/marks";
import { useShared } from "../../state/site";
import { useStable } from "../../state/stable";
import { Content, versionsOf } from "./artifacts";
import type { RunFacts, TabProps } from "./tab";
import styles from "./run.module.css";

const MOST_CURVES = 4;
const MOST_PICTURES = 4;

export function Overview({ run, onChange }: TabProps) {
  const marks = useRunMarks(run.line.id);
  const runs = useStable([{ id: run.line.id, label: run.line.tag || run.line.id }]);
  const looks = useStyles(runs, useShared().isDark);
  const pinned = mainMetrics(run);
  const warnings = run.events.filter((event) => event.kind === "warned");
  const traceback = run.attempts.at(-1)?.traceback;
  return (
    <div className={styles.overview}>
      <div className={styles.column}>
        {traceback && (
          <section>
            <h2>Why it failed</h2>
            <pre className={styles.traceback}>{traceback.trim()}</pre>
          </section>
        )}
        <Readme run={run} />
        <Notes run={run} />
        {warnings.length > 0 && (
          <section>
            <h2>Warnings</h2>
            <ul className={styles.warnings}>
              {warnings.slice(-8).map((event) => (
                <li key={`${event.at} ${event.text}`}>
                  <span className="quiet" title={moment(event.at)}>
                    {event.step === null ? moment(event.at) : `step ${count(event.step)}`}
                  </span>{" "}
                  {event.text}
                </li>
              ))}
            </ul>
          </section>
        )}
        <section>
          <h2>Folder</h2>
          <CopyLine text={run.path} title="Copy the path" />
        </section>
      </div>
      <div className={styles.column}>
        {pinned.length > 0 && (
          <section className={styles.small} aria-label="Curves">
            <Panels
              runs={runs}
              looks={looks}
              metrics={pinned}
              axis={{ x: "", logX: false, smooth: 0 }}
              zoom={null}
              filter=""
              layout={{ ...EMPTY_LAYOUT, pinned }}
              marks={marks}
              place={`overview-${run.line.id}`}
              isFlat
              onZoom={(zoom) => zoom && onChange({ tab: "curves", z: `${zoom.low}:${zoom.high}` })}
              onLayout={() => undefined}
              onOptions={(key, options) => onChange({ tab: "curves", o: [showPanel(key, options)].filter(Boolean) })}
              onLarge={(big) => onChange({ tab: "curves", big })}
            />
            <Rest count={run.metrics.length - pinned.length} of="metrics" at="the tab Curves" />
          </section>
        )}
        <Pictures run={run} onChange={onChange} />
        <Times run={run} />
        <Memory run={run} />
        <Results run={run} />
      </div>
    </div>
  );
}

/** The newest pictures of a run, each the last version of its name. */
function Pictures({ run, onChange }: Pick<TabProps, "run" | "onChange">) {
  const pictures = useMemo(() => newestPictures(run.artifacts), [run.artifacts]);
  const [newest, more] = useLimited(pictures, MOST_PICTURES);
  if (!newest.length) return null;
  return (
    <section aria-label="Pictures">
      <h2>Pictures</h2>
      <div className={styles.pictures}>
        {newest.map((artifact) => (
          <figure key={artifact.name} aria-label={artifact.name}>
            <Content id={run.line.id} artifact={artifact} />
            <figcaption>
              <button type="button" className="ellipsis" title={`Show all steps of ${artifact.name}`} onClick={() => onChange({ tab: "artifacts", at: artifact.name })}>
                {artifact.name}
              </button>
              {artifact.step !== null && <span className="quiet">step {count(artifact.step)}</span>}
            </figcaption>
          </figure>
        ))}
      </div>
      {more}
    </section>
  );
}

function newestPictures(artifacts: readonly Schema["ArtifactFacts"][]): Schema["ArtifactFacts"][] {
  const newest = versionsOf(artifacts.filter((each) => each.media === "image")).map(([, versions]) => versions.at(-1)!);
  return newest.sort((a, b) => b.at - a.at || a.name.localeCompare(b.name));
}

/** Return the metrics that are looked at first: the best one, the losses. */
function mainMetrics(run: RunFacts): string[] {
  const names = run.metrics.map((metric) => metric.name);
  const wanted = [run.line.best?.metric, "valid/acc", "valid/loss", "train/loss", ...names.filter((name) => /loss|acc/.test(name))];
  const found = [...new Set(wanted)].filter((name): name is string => name !== undefined && names.includes(name));
  return (found.length ? found : names.filter((name) => !/^(time|speed|memory)\//.test(name))).slice(0, MOST_CURVES);
}

function Readme({ run }: { run: RunFacts }) {
  const { project, facts } = useShared();
  const [text, setText] = useState<string | null>(null);
  const [shown, setShown] = useState<string | null>(null);
  const [theirs, setTheirs] = useState<string | null>(null);
  const desc = shown ?? run.desc;
  const [seen, setSeen] = useState(run.descDigest);
  const save = async () => {
    if (text === null) return;
    try {
      await data(
        api.PUT("/api/runs/{run_id}/desc", {
          params: { path: { run_id: run.line.id }, query: { project } },
          body: { text, seen },
        }),
      );
      setShown(text);
      setText(null);
      setTheirs(null);
      say("The description is saved.");
    } catch (error) {
      if (error instanceof ApiError && error.status === 409) {
        // Somebody else was faster: their text beside ours, and the next save replaces it.
        const fresh = await data(api.GET("/api/runs/{run_id}", { params: { path: { run_id: run.line.id }, query: { project } } })).catch(() => null);
        setTheirs(fresh?.desc ?? "");
        if (fresh) setSeen(fresh.descDigest);
      }
      complain(error, "The description is not saved.");
    }
  };
  return (
    <section>
      <div className={styles.sectionHead}>
        <h2>README</h2>
        {text === null && !facts.isReadOnly && (
          <Button
            kind="quiet"
            icon="edit"
            onClick={() => {
              setSeen(run.descDigest);
              setText(desc);
            }}
          >
            Edit
          </Button>
        )}
      </div>
      {text === null ? (
        desc ? (
          <Markdown text={desc} />
        ) : (
          <p className="quiet">Nothing is said about this run yet.</p>
        )
      ) : (
        <div className={styles.editor}>
          {theirs !== null && (
            <div className={styles.theirs}>
              <strong>What somebody else wrote meanwhile:</strong>
              <Markdown text={theirs} />
            </div>
          )}
          <textarea
            value={text}
            aria-label="README, in Markdown"
            rows={Math.min(24, Math.max(6, text.split("\n").length + 1))}
            onChange={(event) => setText(event.target.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void save();
              if (event.key === "Escape") setText(null);
            }}
          />
          <div className={styles.buttons}>
            <Button kind="primary" onClick={() => void save()}>
              Save
            </Button>
            <Button onClick={() => setText(null)}>Cancel</Button>
            <span className="quiet">Markdown, kept in the run's README.md</span>
          </div>
        </div>
      )}
    </section>
  );
}

function Notes({ run }: { run: RunFacts }) {
  const { project, facts } = useShared();
  const [text, setText] = useState("");
  const [mine, setMine] = useState<Schema["NoteFacts"][]>([]);
  const known = new Set(run.notes.map((note) => note.text));
  const notes = [...run.notes, ...mine.filter((note) => !known.has(note.text))];
  const add = async (event: SyntheticEvent) => {
    event.preventDefault();
    const note = { text: text.trim(), who: facts.user, at: Date.now() / 1000 };
    if (!note.text) return;
    setText("");
    setMine([...mine, note]);
    try {
      await data(api.POST("/api/runs/{run_id}/notes", { params: { path: { run_id: run.line.id }, query: { project } }, body: { text: note.text } }));
    } catch (error) {
      setMine((before) => before.filter((each) => each !== note));
      setText(note.text);
      complain(error, "The note is not kept.");
    }
  };
  return (
    <section>
      <h2>Notes</h2>
      <ul className={styles.notes}>
        {notes.map((note) => (
          <li key={`${note.at} ${note.text}`}>
            <span className="quiet" title={moment(note.at)}>
              {note.who} {age(note.at, Date.now() / 1000)}
            </span>
            <Markdown text={note.text} />
          </li>
        ))}
      </ul>
      {!facts.isReadOnly && (
        <form className={styles.note} onSubmit={(event) => void add(event)}>
          <input value={text} placeholder="add a note" aria-label="A note" onChange={(event) => setText(event.target.value)} />
          <Button type="submit" disabled={!text.trim()}>
            Add
          </Button>
        </form>
      )}
    </section>
  );
}

const TIME_NAMES = ["forward", "backward", "optimizer", "data", "move", "evaluation", "checkpoint", "logging", "other"];
const TIME_COLORS: Record<string, string> = {
  forward: "light-dark(#0a6cd6, #4da3ff)",
  backward: "light-dark(#4f46e5, #9a94ff)",
  optimizer: "light-dark(#0e7490, #4cc9de)",
  data: "light-dark(#c2410c, #ff8a4c)",
  move: "light-dark(#a16207, #e3b341)",
  evaluation: "light-dark(#0f7b4f, #3fc98b)",
  checkpoint: "light-dark(#8b2fb8, #cf86f5)",
  logging: "light-dark(#be185d, #ff7ab6)",
  other: "light-dark(#8a929c, #767e88)",
};

/** How the time of the run was spent, as one bar. */
function Times({ run }: { run: RunFacts }) {
  const parts = run.metrics
    .filter((metric) => metric.name.startsWith("time/") && metric.name.endsWith("_s"))
    .map((metric) => ({ name: metric.name.slice(5, -2), seconds: Number(metric.mean) * metric.count }))
    .filter((part) => part.seconds > 0 && Number.isFinite(part.seconds))
    .sort((a, b) => order(a.name) - order(b.name));
  const total = parts.reduce((sum, part) => sum + part.seconds, 0);
  if (!total) return null;
  return (
    <section>
      <h2>Time</h2>
      <div className={styles.timeBar} role="img" aria-label={parts.map((part) => `${part.name} ${share(part.seconds, total)}`).join(", ")}>
        {parts.map((part) => (
          <span key={part.name} style={{ flexGrow: part.seconds, background: TIME_COLORS[part.name] ?? TIME_COLORS.other! }} title={`${part.name}: ${duration(part.seconds)}, ${share(part.seconds, total)}`} />
        ))}
      </div>
      <ul className={styles.legend}>
        {parts.map((part) => (
          <li key={part.name}>
            <span className={styles.swatch} style={{ background: TIME_COLORS[part.name] ?? TIME_COLORS.other! }} />
            {part.name} <span className="quiet">{share(part.seconds, total)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function order(name: string): number {
  const at = TIME_NAMES.indexOf(name);
  return at < 0 ? 99 : at;
}

function share(part: number, total: number): string {
  const percent = (100 * part) / total;
  return percent < 1 ? "< 1 %" : `${Math.round(percent)} %`;
}

function Memory({ run }: { run: RunFacts }) {
  const parts = run.metrics.filter((metric) => metric.name.startsWith("memory/"));
  if (!parts.length) return null;
  return (
    <section>
      <h2>Memory</h2>
      <dl className={styles.pairs}>
        {parts.map((metric) => (
          <div key={metric.name}>
            <dt>{metric.name.slice(7).replace(/_mib$/, "")}</dt>
            <dd title={`last ${metric.last}`}>{mib(Number(metric.max), metric.name)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function mib(value: number, name: string): string {
  if (!name.endsWith("_mib")) return number(value);
  if (value < 1) return `${number(Number((value * 1024).toPrecision(3)))} KiB`;
  return value >= 1024 ? `${number(value / 1024)} GiB` : `${number(value)} MiB`;
}

function Results({ run }: { run: RunFacts }) {
  const { project, facts } = useShared();
  const [edited, setEdited] = useState<string | null>(null);
  const [text, setText] = useState("");
  if (!run.results.length) return null;
  const save = async (name: string) => {
    setEdited(null);
    const isNumber = text.trim() !== "" && Number.isFinite(Number(text)) && !isLongInteger(text.trim());
    const value = isNumber ? Number(text) : text.trim();
    try {
      await data(api.PUT("/api/runs/{run_id}/results/{name}", { params: { path: { run_id: run.line.id, name }, query: { project } }, body: { value } }));
      say(`${name} is corrected; what was recorded is kept.`);
    } catch (error) {
      complain(error, `${name} stays as it was.`);
    }
  };
  return (
    <section>
      <h2>Results</h2>
      <dl className={styles.pairs}>
        {run.results.map((result) => (
          <div key={result.name}>
            <dt>{result.name}</dt>
            <dd title={result.edits.length ? `corrected: ${result.edits.map((edit) => `${edit.text} by ${edit.who}, ${moment(edit.at)}`).join("; ")}` : whole(result.value)}>
              {edited === result.name ? (
                <input
                  value={text}
                  aria-label={result.name}
                  // It was clicked to be typed into.
                  // eslint-disable-next-line jsx-a11y/no-autofocus
                  autoFocus
                  onChange={(event) => setText(event.target.value)}
                  onBlur={() => setEdited(null)}
                  onKeyDown={(event) => {
                    if (event.key === "Enter") void save(result.name);
                    if (event.key === "Escape") setEdited(null);
                  }}
                />
              ) : (
                <button
                  type="button"
                  className={styles.result}
                  disabled={facts.isReadOnly}
                  onClick={() => {
                    setText(cell(result.value));
                    setEdited(result.name);
                  }}
                >
                  {cell(result.value)}
                  {result.edits.length > 0 && <span className="quiet"> (edited)</span>}
                </button>
              )}
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
