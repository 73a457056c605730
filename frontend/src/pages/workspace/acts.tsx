/** What is done with the selected runs: at once here, and taken back when the server refuses. */
import { useNavigate } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { api, data, type RunLine } from "../../api/client";
import { Button, IconButton } from "../../parts/button";
import { copyText } from "../../parts/copy";
import { Dialog } from "../../parts/dialog";
import { Menu, MenuItem, MenuLine } from "../../parts/menu";
import { restText } from "../../parts/more";
import { complain, say } from "../../parts/toast";
import { useShared } from "../../state/site";
import { count, whole } from "../../state/format";
import type { Rows } from "../../state/rows";
import { MOST_RERUNS, RerunDialog } from "../queue/rerun";
import styles from "./workspace.module.css";

const MOST_TOLD = 3;
const MOST_IN_TABLE = 200;
/** So many runs are compared side by side. */
export const MOST_COMPARED = 50;
export const TOO_MANY = `At most ${MOST_COMPARED} runs are compared at once.`;

type ActName = "archive" | "unarchive" | "remove" | "bring-back" | "label" | "unlabel";

interface ActsProps {
  rows: Rows;
  selected: ReadonlySet<string>;
  columns: readonly string[];
  onClear: () => void;
}

/** Return what does something with runs: shown at once, said with the way back. */
export function useActOnRuns(rows: Rows | null): (act: ActName, ids: readonly string[], labels?: readonly string[]) => Promise<void> {
  const { project, live } = useShared();
  return useMemo(() => {
    const run = async (act: ActName, ids: readonly string[], labels: readonly string[] = [], isUndo = false): Promise<void> => {
      const touched = new Set(ids);
      if (act === "remove") live.leave(ids);
      const end = rows?.patch((each) => (touched.has(each.id) ? after(each, act, labels) : each));
      try {
        const done = await data(
          api.POST("/api/acts", { params: { query: { project } }, body: { act, runs: [...ids], labels: [...labels] } }),
        );
        if (act === "remove") live.stay(done.refused.map((refusal) => refusal.run));
        if (act === "bring-back") live.stay(done.ids);
        for (const refusal of done.refused.slice(0, MOST_TOLD)) complain(refusal.problem.what, refusal.problem.what);
        const untold = done.refused.length - MOST_TOLD;
        if (untold > 0) say(restText(untold, "they are as they were", "runs refused"));
        if (done.ids.length && !isUndo) {
          const back = UNDO[act];
          say(`${many(done.ids.length)} ${SAID[act]}${labels.length ? `: ${labels.join(", ")}` : ""}`, () => void run(back, done.ids, labels, true));
        }
      } catch (error) {
        if (act === "remove") live.stay(ids);
        complain(error);
      }
      await rows?.refresh();
      end?.();
    };
    return (act, ids, labels) => run(act, ids, labels);
  }, [rows, project, live]);
}

const UNDO: Record<ActName, ActName> = {
  archive: "unarchive",
  unarchive: "archive",
  remove: "bring-back",
  "bring-back": "remove",
  label: "unlabel",
  unlabel: "label",
};

const SAID: Record<ActName, string> = {
  archive: "archived",
  unarchive: "shown again",
  remove: "removed",
  "bring-back": "brought back",
  label: "labelled",
  unlabel: "without the label",
};

function after(run: RunLine, act: ActName, labels: readonly string[]): RunLine {
  const without = (taken: readonly string[]) => run.labels.filter((label) => !taken.includes(label));
  switch (act) {
    case "label":
      return { ...run, labels: [...without(labels), ...labels] };
    case "unlabel":
      return { ...run, labels: without(labels) };
    case "archive":
      return { ...run, labels: [...without(["archived"]), "archived"] };
    case "unarchive":
      return { ...run, labels: without(["archived"]) };
    default:
      return run;
  }
}

function many(number: number): string {
  return `${count(number)} ${number === 1 ? "run" : "runs"}`;
}

export function Acts({ rows, selected, columns, onClear }: ActsProps) {
  const { project, facts } = useShared();
  const navigate = useNavigate();
  const act = useActOnRuns(rows);
  const [isLabelling, setLabelling] = useState(false);
  const [isQueueing, setQueueing] = useState(false);
  const ids = useMemo(() => [...selected], [selected]);
  const isReadOnly = facts.isReadOnly;
  const search = project ? { project } : {};
  const exportAs = async (form: "csv" | "ids" | "json") => {
    try {
      const text = form === "ids" ? ids.join("\n") : await exported(project, ids, columns, form);
      if (await copyText(text)) say(form === "ids" ? "The ids are copied." : `${many(ids.length)} copied as ${form.toUpperCase()}.`);
    } catch (error) {
      complain(error);
    }
  };
  return (
    <>
      <Button
        kind="quiet"
        icon="compare"
        disabled={ids.length < 2 || ids.length > MOST_COMPARED}
        title={ids.length > MOST_COMPARED ? TOO_MANY : "Compare (c)"}
        onClick={() => void navigate({ to: "/compare", search: { ...search, runs: ids.join(",") } })}
      >
        Compare
      </Button>
      {!isReadOnly && (
        <Button kind="quiet" icon="tag" onClick={() => setLabelling(true)}>
          Label
        </Button>
      )}
      {!isReadOnly && (
        <Button kind="quiet" icon="archive" onClick={() => void act("archive", ids)}>
          Archive
        </Button>
      )}
      <Menu align="end" trigger={<IconButton icon="more" label="More to do with the selected runs" />}>
        <MenuItem icon="table" disabled={ids.length > MOST_IN_TABLE} onSelect={() => void navigate({ to: "/tables", search: { ...search, from: ids.join(",") } })}>
          New table
          {ids.length > MOST_IN_TABLE && <div className={styles.why}>Of at most {MOST_IN_TABLE} runs.</div>}
        </MenuItem>
        <MenuItem icon="copy" onSelect={() => void exportAs("csv")}>
          Copy as CSV
        </MenuItem>
        <MenuItem icon="copy" onSelect={() => void exportAs("json")}>
          Copy as JSON
        </MenuItem>
        <MenuItem icon="copy" onSelect={() => void exportAs("ids")}>
          Copy the ids
        </MenuItem>
        <MenuItem icon="history" onSelect={() => void copyText(ids.map((id) => `assay rerun ${id}`).join("\n")).then((isDone) => isDone && say("The commands are copied."))}>
          Copy commands that run them again
        </MenuItem>
        <MenuItem icon="history" disabled={facts.queueRefusal !== "" || ids.length > MOST_RERUNS} onSelect={() => setQueueing(true)}>
          Put in line again
          {(facts.queueRefusal || ids.length > MOST_RERUNS) && <div className={styles.why}>{facts.queueRefusal || `At most ${MOST_RERUNS} at once.`}</div>}
        </MenuItem>
        {!isReadOnly && <MenuLine />}
        {!isReadOnly && (
          <MenuItem icon="eye" onSelect={() => void act("unarchive", ids)}>
            Take out of the archive
          </MenuItem>
        )}
        {!isReadOnly && (
          <MenuItem
            icon="trash"
            isDanger
            onSelect={() => {
              void act("remove", ids);
              onClear();
            }}
          >
            Remove {many(ids.length)}
          </MenuItem>
        )}
      </Menu>
      <IconButton icon="cross" label="Select nothing" size={14} onClick={onClear} />
      {isQueueing && <RerunDialog ids={ids} onClose={() => setQueueing(false)} />}
      {isLabelling && <LabelDialog ids={ids} onClose={() => setLabelling(false)} onLabel={(what, labels) => void act(what, ids, labels)} />}
    </>
  );
}

async function exported(project: string, ids: readonly string[], columns: readonly string[], form: "csv" | "json"): Promise<string> {
  const where = ids.map((id) => `id = "${id}"`).join(" or ");
  const names = ["id", "tag", "status", "duration", "step", ...columns.filter((name) => !["id", "tag", "status", "duration", "step", "age", "best", "created"].includes(name))];
  const found = await data(
    api.GET("/api/values", { params: { query: { project, where, column: names, archived: true, tests: true } } }),
  );
  const rows = found.ids.map((_, at) => names.map((name) => found.columns[name]?.[at] ?? null));
  if (form === "json") return JSON.stringify(rows.map((row) => Object.fromEntries(names.map((name, i) => [name, row[i]]))), null, 1);
  return [names, ...rows].map((row) => row.map(csvCell).join(",")).join("\n");
}

function csvCell(value: unknown): string {
  if (value === null || value === undefined) return "";
  const text = whole(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function LabelDialog({ ids, onClose, onLabel }: { ids: readonly string[]; onClose: () => void; onLabel: (what: "label" | "unlabel", labels: string[]) => void }) {
  const [text, setText] = useState("");
  const labels = text.split(",").map((each) => each.trim()).filter(Boolean);
  const done = (what: "label" | "unlabel") => {
    onLabel(what, labels);
    onClose();
  };
  return (
    <Dialog
      title={`Label ${many(ids.length)}`}
      size="small"
      isOpen
      onClose={onClose}
      footer={
        <>
          <Button disabled={!labels.length} onClick={() => done("unlabel")}>
            Take off
          </Button>
          <Button kind="primary" disabled={!labels.length} onClick={() => done("label")}>
            Put on
          </Button>
        </>
      }
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (labels.length) done("label");
        }}
      >
        <label className={styles.labelField}>
          Labels, with commas between
          {/* The dialog was opened to type here. */}
          {/* eslint-disable-next-line jsx-a11y/no-autofocus */}
          <input autoFocus value={text} onChange={(event) => setText(event.target.value)} />
        </label>
      </form>
    </Dialog>
  );
}
