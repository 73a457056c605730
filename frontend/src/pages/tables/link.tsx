/** The dialog that lets a cell lead to a value: of named runs, or of all that an expression is true for. */
import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useState } from "react";
import { api, ApiError, data, type Schema } from "../../api/client";
import { Button, IconButton } from "../../parts/button";
import { Dialog } from "../../parts/dialog";
import { Picker } from "../../parts/picker";
import { age, count } from "../../state/format";
import { useShared } from "../../state/site";
import { useValueChoices } from "./values";
import styles from "./tables.module.css";

type LinkFacts = Schema["LinkFacts"];

interface LinkDialogProps {
  link: LinkFacts | null;
  onClose: () => void;
  onLink: (link: LinkFacts) => void;
}

export function LinkDialog({ link, onClose, onLink }: LinkDialogProps) {
  const { project } = useShared();
  const { choices } = useValueChoices();
  const [value, setValue] = useState(link?.value ?? "");
  const [runs, setRuns] = useState<readonly string[]>(link?.runs ?? []);
  const [where, setWhere] = useState(link?.where ?? "");
  const fresh: LinkFacts = { value, runs: [...runs], where: runs.length ? "" : where.trim() };
  const asked = useDeferredValue(JSON.stringify(fresh));
  const isWhole = value !== "" && (runs.length > 0 || where.trim() !== "");
  const preview = useQuery({
    queryKey: ["follow", project, asked],
    queryFn: () => data(api.POST("/api/follow", { params: { query: { project } }, body: JSON.parse(asked) as LinkFacts })),
    enabled: isWhole,
    placeholderData: (before) => before,
    retry: false,
  });
  const listed = useQuery({
    queryKey: ["runs-to-compare", project],
    queryFn: () => data(api.GET("/api/runs", { params: { query: { project, limit: 500 } } })),
  });
  const now = Date.now() / 1000;
  const runChoices = (listed.data?.rows ?? []).map((run) => ({ value: `${run.tag}  ${run.id}`.trim(), kind: age(run.created, now) }));
  const idOf = (text: string) => text.split(/\s+/).at(-1)!;
  const found = preview.data;
  const isGone = found?.state === "gone";
  return (
    <Dialog
      title="A value of runs"
      isOpen
      onClose={onClose}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={!isWhole || !found || isGone} onClick={() => onLink(fresh)}>
            Put it into the cell
          </Button>
        </>
      }
    >
      <div className={styles.form}>
        <div>
          <span className={styles.label}>Value</span>
          <Picker
            trigger={<Button>{value || "choose a metric, a key, ..."}</Button>}
            label="Value"
            placeholder="metric, config key, ..."
            choices={choices}
            onChoose={setValue}
          />
        </div>
        <div>
          <span className={styles.label}>of the runs</span>
          <div className={styles.chips}>
            {runs.map((id) => (
              <span key={id} className={styles.chip}>
                <code>{id}</code>
                <IconButton icon="cross" size={12} label={`Without ${id}`} onClick={() => setRuns(runs.filter((each) => each !== id))} />
              </span>
            ))}
            <Picker
              trigger={
                <Button kind="quiet" icon="plus">
                  Add a run
                </Button>
              }
              label="Runs"
              placeholder="tag or id"
              choices={runChoices}
              chosen={new Set(runChoices.filter((each) => runs.includes(idOf(each.value))).map((each) => each.value))}
              stays
              onChoose={(text) => setRuns(runs.includes(idOf(text)) ? runs.filter((each) => each !== idOf(text)) : [...runs, idOf(text)])}
            />
          </div>
        </div>
        {runs.length === 0 && (
          <label>
            <span>or of all with</span>
            <input value={where} placeholder="tag = digits and model.width = 64" onChange={(event) => setWhere(event.target.value)} />
          </label>
        )}
        <p className={styles.preview} role="status" data-bad={isGone || preview.error ? true : undefined}>
          {!isWhole ? (
            <span className="quiet">Several runs become mean ± deviation.</span>
          ) : preview.error ? (
            preview.error instanceof ApiError ? preview.error.problem.what : String(preview.error)
          ) : isGone ? (
            typeof found.value === "string" ? found.value : "No such run has that value."
          ) : (
            found && (
              <>
                <strong>{found.text}</strong> <span className="quiet">of {count(found.runs.length)} {found.runs.length === 1 ? "run" : "runs"}</span>
              </>
            )
          )}
        </p>
      </div>
    </Dialog>
  );
}
