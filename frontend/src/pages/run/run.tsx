/** One run: a line that says what it is, and tabs with everything its folder tells. */
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useCallback, useState } from "react";
import { api, data } from "../../api/client";
import { IconButton } from "../../parts/button";
import { CopyLine } from "../../parts/copy";
import { Empty, Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { Menu, MenuItem, MenuLine } from "../../parts/menu";
import { useShortcuts } from "../../parts/shortcuts";
import { TabPanel, Tabs } from "../../parts/tabs";
import { complain, say } from "../../parts/toast";
import type { RunSearch } from "../../state/address";
import { count, duration, number } from "../../state/format";
import { useRunFacts } from "../../state/marks";
import { useNow, useShared } from "../../state/site";
import { Labels, Status } from "../../table/cells";
import { RerunButton } from "../queue/rerun";
import { useActOnRuns } from "../workspace/acts";
import { Artifacts } from "./artifacts";
import { Attempts } from "./attempts";
import { Checkpoints } from "./checkpoints";
import { Curves } from "./curves";
import { Environment } from "./environment";
import { Overview } from "./overview";
import { Proof } from "./proof";
import type { RunFacts } from "./tab";
import styles from "./run.module.css";

const Config = lazy(async () => ({ default: (await import("./config")).Config }));
const CodeTab = lazy(async () => ({ default: (await import("./code-tab")).CodeTab }));
const Log = lazy(async () => ({ default: (await import("./log")).Log }));

export function RunPage() {
  const { id } = useParams({ from: "/runs/$id" });
  const run = useRunFacts(id);
  const { project } = useShared();
  const navigate = useNavigate();
  useShortcuts([{ keys: "escape", text: "Back to the runs", run: () => void navigate({ to: "/", search: project ? { project } : {} }) }]);
  return (
    <>
      <Head page="" title={run.data?.line.tag || id} />
      <main id="main" className={styles.page}>
        {run.data ? (
          <Whole run={run.data} isGone={run.isGone} key={id} />
        ) : run.isGone ? (
          <Empty title={`There is no run ${id}.`}>
            It was removed, or lies in another project.
            <Link to="/" search={project ? { project } : {}}>
              Back to the runs
            </Link>
          </Empty>
        ) : (
          run.error && <Failure error={run.error} />
        )}
      </main>
    </>
  );
}

function Whole({ run, isGone }: { run: RunFacts; isGone: boolean }) {
  const search = useSearch({ from: "/runs/$id" });
  const navigate = useNavigate({ from: "/runs/$id" });
  const change = useCallback(
    (changes: Partial<RunSearch>, stays = false) =>
      void navigate({ to: "/runs/$id", params: { id: run.line.id }, search: (before: RunSearch) => ({ ...before, ...changes }), replace: stays }),
    [navigate, run.line.id],
  );
  const open = search.tab ?? "overview";
  const go = (tab: string) => change({ tab: tab === "overview" ? "" : tab, at: "", z: "", step: undefined });
  const tabs = [
    { name: "overview", title: "Overview" },
    { name: "curves", title: "Curves", count: run.metrics.length },
    { name: "config", title: "Config" },
    { name: "code", title: "Code", count: run.codeFiles },
    { name: "log", title: "Log" },
    { name: "checkpoints", title: "Checkpoints", count: run.checkpoints.length },
    { name: "artifacts", title: "Artifacts", count: run.artifacts.length },
    { name: "environment", title: "Environment" },
    { name: "proof", title: "Trace and proof", count: run.verdicts.length },
    { name: "attempts", title: "Attempts", count: run.attempts.length },
  ];
  const props = { run, search, onChange: change };
  return (
    <>
      <Title run={run} />
      {isGone && <p className={styles.gone} role="alert">This run was removed. What is shown is what it was.</p>}
      {run.problems.map((problem) => (
        <p key={problem} className={styles.problem} role="alert">
          {problem}
        </p>
      ))}
      <Tabs tabs={tabs} open={open} label="Parts of the run" onOpen={go} />
      <TabPanel name={open} className={["config", "code", "log", "curves"].includes(open) ? styles.fixed : styles.scroll}>
        <Suspense fallback={null}>
          {open === "overview" && <Overview {...props} />}
          {open === "curves" && <Curves {...props} />}
          {open === "config" && <Config {...props} />}
          {open === "code" && <CodeTab {...props} />}
          {open === "log" && <Log {...props} />}
          {open === "checkpoints" && <Checkpoints {...props} />}
          {open === "artifacts" && <Artifacts {...props} />}
          {open === "environment" && <Environment {...props} />}
          {open === "proof" && <Proof {...props} />}
          {open === "attempts" && <Attempts {...props} />}
        </Suspense>
      </TabPanel>
    </>
  );
}

function Title({ run }: { run: RunFacts }) {
  const { facts, project } = useShared();
  const navigate = useNavigate();
  const act = useActOnRuns(null);
  const now = useNow(1);
  const [fetchedAt] = useState(() => ({ at: 0, duration: null as number | null }));
  if (fetchedAt.duration !== run.line.duration) {
    fetchedAt.duration = run.line.duration;
    fetchedAt.at = Date.now() / 1000;
  }
  const { line } = run;
  const isLive = line.status === "running";
  const newest = run.attempts.at(-1);
  const again = run.commands[0];
  const isArchived = line.labels.includes("archived");
  return (
    <header className={styles.title}>
      <div className={styles.names}>
        <TagField run={run} />
        <code className={styles.id}>{line.id}</code>
        <span className={styles.status}>
          <Status run={line} />
        </span>
        <Labels labels={line.labels} />
        <span className={styles.grow} />
        <span className={styles.acts}>
          {again && <CopyLine label="again:" text={again.line} title={`${again.purpose}. Copy`} />}
          {line.kind === "train" && <RerunButton run={line.id} refusal={run.rerunRefusal} />}
          <Menu align="end" trigger={<IconButton icon="more" label="More to do with this run" />}>
            {run.commands.slice(1).map((command) => (
              <MenuItem key={command.line} icon="copy" onSelect={() => void navigator.clipboard.writeText(command.line).then(() => say("The command is copied."), complain)}>
                {command.line}
              </MenuItem>
            ))}
            {!facts.isReadOnly && <MenuLine />}
            {!facts.isReadOnly && (
              <MenuItem icon="archive" onSelect={() => void act(isArchived ? "unarchive" : "archive", [line.id])}>
                {isArchived ? "Take out of the archive" : "Archive"}
              </MenuItem>
            )}
            {!facts.isReadOnly && (
              <MenuItem
                icon="trash"
                isDanger
                disabled={isLive}
                onSelect={() => {
                  void act("remove", [line.id]).then(() => navigate({ to: "/", search: project ? { project } : {} }));
                }}
              >
                Remove
              </MenuItem>
            )}
          </Menu>
        </span>
      </div>
      <dl className={styles.facts}>
        {line.best && <Fact name="best" value={`${line.best.metric} ${typeof line.best.value === "number" ? number(line.best.value) : line.best.value}`} title={`${line.best.value} at step ${line.best.step ?? "?"}`} />}
        <Fact name="steps" value={count(line.step)} />
        <Fact name="duration" value={duration((line.duration ?? 0) + (isLive ? Math.max(0, now - fetchedAt.at) : 0))} />
        {newest && newest.devices.length > 0 && <Fact name="device" value={newest.devices.join(", ")} />}
        {newest?.host && <Fact name="host" value={newest.host} />}
        {run.exactness && <Fact name="resume" value={run.exactness} />}
        {line.attempts > 1 && <Fact name="attempts" value={String(line.attempts)} />}
        {run.parent && <Fact name="of" value={run.parent} />}
        {line.reason && line.status !== "finished" && <Fact name="cause" value={line.reason} isBad />}
      </dl>
    </header>
  );
}

function Fact({ name, value, title, isBad = false }: { name: string; value: string; title?: string; isBad?: boolean }) {
  return (
    <div className={styles.fact} data-bad={isBad || undefined}>
      <dt>{name}</dt>
      <dd title={title ?? value}>{value}</dd>
    </div>
  );
}

/** The title of a run: a click edits it. */
function TagField({ run }: { run: RunFacts }) {
  const { project, facts } = useShared();
  const [text, setText] = useState<string | null>(null);
  const [shown, setShown] = useState<string | null>(null);
  const tag = shown ?? run.line.tag;
  const save = async () => {
    if (text === null) return;
    const before = tag;
    setText(null);
    if (text.trim() === before) return;
    setShown(text.trim());
    try {
      await data(api.PUT("/api/runs/{run_id}/tag", { params: { path: { run_id: run.line.id }, query: { project } }, body: { tag: text.trim() } }));
      say(`Called ${text.trim() || run.line.id} now.`);
    } catch (error) {
      setShown(null);
      complain(error, "The title stays as it was.");
    }
  };
  if (text !== null) {
    return (
      <input
        className={styles.tagField}
        value={text}
        aria-label="Title"
        // It was clicked to be typed into.
        // eslint-disable-next-line jsx-a11y/no-autofocus
        autoFocus
        onChange={(event) => setText(event.target.value)}
        onBlur={() => void save()}
        onKeyDown={(event) => {
          if (event.key === "Enter") void save();
          if (event.key === "Escape") setText(null);
        }}
      />
    );
  }
  return (
    <h1 className={styles.tag}>
      {facts.isReadOnly ? (
        tag || run.line.id
      ) : (
        <button type="button" title="Change the title" onClick={() => setText(tag)}>
          {tag || "(no tag)"}
        </button>
      )}
    </h1>
  );
}
