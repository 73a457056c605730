/** Putting runs in line again: what it would do is shown first. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ApiError, data } from "../../api/client";
import { Button } from "../../parts/button";
import { CopyLine } from "../../parts/copy";
import { Dialog } from "../../parts/dialog";
import { Failure } from "../../parts/failure";
import { complain, say } from "../../parts/toast";
import { count } from "../../state/format";
import { useShared } from "../../state/site";
import styles from "./queue.module.css";

export const MOST_RERUNS = 100;

/** A button that asks whether to put one run in line again. */
export function RerunButton({ run, refusal }: { run: string; refusal: string }) {
  const { facts } = useShared();
  const [isOpen, setOpen] = useState(false);
  const why = facts.queueRefusal || refusal;
  return (
    <>
      <Button
        icon="history"
        aria-disabled={why !== "" || undefined}
        title={why || "Put this run in line again"}
        onClick={() => (why ? complain(why) : setOpen(true))}
      >
        Queue again
      </Button>
      {isOpen && <RerunDialog ids={[run]} onClose={() => setOpen(false)} />}
    </>
  );
}

export function RerunDialog({ ids, onClose }: { ids: readonly string[]; onClose: () => void }) {
  const { project } = useShared();
  const navigate = useNavigate();
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<ApiError | null>(null);
  const plan = useQuery({
    queryKey: ["rerun", project, ids],
    queryFn: () => data(api.GET("/api/queue/rerun", { params: { query: { project, runs: [...ids] } } })),
    staleTime: 0,
  });
  const found = plan.data;
  const refused = found?.runs.filter((each) => each.refusal) ?? [];
  const submit = async () => {
    setBusy(true);
    setProblem(null);
    try {
      const { jobs, dispatcher } = await data(api.POST("/api/queue/rerun", { params: { query: { project } }, body: { runs: [...ids] } }));
      const jobsText = jobs.length === 1 ? `Job ${jobs[0]} is in line.` : `${count(jobs.length)} jobs are in line.`;
      const hint = dispatcher ? "" : " No dispatcher is at work: `assay queue work --detach` starts it.";
      say(`${jobsText}${hint}`, () => void navigate({ to: "/queue", search: project ? { project } : {} }), "Open the queue");
      onClose();
    } catch (error) {
      setProblem(error instanceof ApiError ? error : null);
      if (!(error instanceof ApiError)) complain(error);
    }
    setBusy(false);
  };
  return (
    <Dialog
      title={ids.length === 1 ? "Put this run in line again" : `Put ${count(ids.length)} runs in line again`}
      isOpen
      onClose={onClose}
      footer={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" disabled={!found || found.refusal !== "" || refused.length > 0 || isBusy} onClick={() => void submit()}>
            {isBusy ? "Checking and rehearsing ..." : "Put in line"}
          </Button>
        </>
      }
    >
      {plan.error && <Failure error={plan.error} />}
      {found && (
        <>
          {found.refusal && <p role="alert">{found.refusal}</p>}
          <dl className={styles.plan}>
            <dt>Runs</dt>
            <dd>
              <CopyLine text={found.command} title="This command does the same in a terminal. Copy" />
              <span className="quiet">in {found.root}</span>
            </dd>
            <dt>Config</dt>
            <dd>as it was recorded, checked and rehearsed before it is in line</dd>
            <dt>Code</dt>
            <dd>the files of the project as they are now, frozen for the job</dd>
            <dt>Device</dt>
            <dd>{found.device === "cpu" ? "the CPU, as the run had it" : "one that is free"}, for each job alone</dd>
          </dl>
          <ul className={styles.planned}>
            {found.runs.map((each) => (
              <li key={each.run}>
                <code>{each.run}</code> {each.tag}
                {each.commit && (
                  <span className="quiet">
                    {" "}
                    had commit {each.commit.slice(0, 8)}
                    {each.isDirty && " with changes"}
                  </span>
                )}
                {each.refusal && <div role="alert">{each.refusal}</div>}
              </li>
            ))}
          </ul>
          {!found.dispatcher && <p className="quiet">No dispatcher is at work: the job waits until `assay queue work` is started in a terminal.</p>}
          {problem && (
            <div role="alert">
              <p>{problem.problem.what}</p>
              <pre className={styles.refused}>{problem.problem.where || problem.problem.fix}</pre>
            </div>
          )}
        </>
      )}
    </Dialog>
  );
}
