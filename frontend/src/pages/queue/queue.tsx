/** The queue of this machine: devices as lanes with their jobs, the line below, what has ended, and a log. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { lazy, Suspense, useRef, useState } from "react";
import { api, data } from "../../api/client";
import { fetchAgain } from "../../api/queries";
import { Button, IconButton } from "../../parts/button";
import { CopyLine } from "../../parts/copy";
import { Dialog } from "../../parts/dialog";
import { Empty, Failure } from "../../parts/failure";
import { Head } from "../../parts/frame";
import { Icon, type IconName } from "../../parts/icons";
import { useShortcuts } from "../../parts/shortcuts";
import { complain } from "../../parts/toast";
import type { QueueSearch } from "../../state/address";
import { age, bytes, count, duration, moment } from "../../state/format";
import { useNow, useShared } from "../../state/site";
import { applied, runningJobs, type JobLine, type QueueAct, type QueueFacts } from "./acts";
import styles from "./queue.module.css";

const TextLog = lazy(async () => ({ default: (await import("../../parts/text-log")).TextLog }));

const ICONS: Record<JobLine["state"], IconName> = { waiting: "history", running: "play", finished: "check", failed: "cross", cancelled: "stop" };
const SHOWN = 200;
const ALL = 10_000;

type Lane = QueueFacts["devices"][number];

/** Acts that the jobs of the page share. */
interface JobActs {
  /** null on a page that may change nothing. */
  act: ((act: QueueAct) => void) | null;
  askToStop: (job: JobLine) => void;
  show: (job: JobLine) => void;
  shown: number;
  cursor: number;
}

export function QueuePage() {
  const { facts, project } = useShared();
  const search = useSearch({ from: "/queue" });
  const navigate = useNavigate({ from: "/queue" });
  const client = useQueryClient();
  const [isWhole, setWhole] = useState(false);
  const [stopped, setStopped] = useState<JobLine | null>(null);
  const [cursor, setCursor] = useState(0);
  const key = ["queue", project, isWhole];
  const limits = isWhole ? { waiting: ALL, ended: ALL } : { waiting: SHOWN, ended: 50 };
  const queue = useQuery({
    queryKey: key,
    queryFn: () => data(api.GET("/api/queue", { params: { query: limits } })),
    placeholderData: (before) => before,
  });

  const [pending, setPending] = useState<readonly QueueAct[]>([]);
  const turn = useRef(Promise.resolve());
  // One request at a time, in order; what the queue will be is shown until it is fetched again.
  const act = async (given: QueueAct) => {
    setPending((others) => [...others, given]);
    turn.current = turn.current.then(() => data(api.POST("/api/queue/acts", { body: given }))).then(() => undefined, complain);
    await turn.current;
    await fetchAgain(client, (query) => query.queryKey[0] === "queue");
    setPending((others) => others.filter((each) => each !== given));
  };
  const found = queue.data && pending.reduce(applied, queue.data);
  const running = found ? runningJobs(found) : [];
  const waiting = found?.waiting ?? [];
  const jobs = [...running, ...waiting, ...(found?.ended ?? [])];
  const chosen = jobs[Math.min(cursor, jobs.length - 1)];
  const shown = jobs.find((each) => String(each.id) === search.job);
  const show = (job: JobLine | null) =>
    void navigate({ search: (now: QueueSearch) => ({ ...(now.project && { project: now.project }), ...(job && { job: String(job.id) }) }) });
  const mayAct = !facts.isReadOnly;
  useShortcuts([
    { keys: "j", text: "Next job", run: () => setCursor(Math.min(jobs.length - 1, cursor + 1)) },
    { keys: "k", text: "Job before", run: () => setCursor(Math.max(0, cursor - 1)) },
    { keys: "enter", text: "What the job has printed", run: () => chosen && show(chosen) },
    ...(mayAct
      ? [
          {
            keys: "p",
            text: "Pause the job, or let it start",
            run: () => chosen?.state === "waiting" && void act({ act: chosen.isHeld ? "resume" : "pause", job: chosen.id }),
          },
          { keys: "s", text: "Stop the job", run: () => chosen && (chosen.state === "running" || chosen.state === "waiting") && setStopped(chosen) },
        ]
      : []),
    {
      keys: "escape",
      text: "Close the log, or back to the runs",
      run: () => (search.job ? show(null) : void navigate({ to: "/", search: project ? { project } : {} })),
    },
  ]);
  const acts: JobActs = { act: mayAct ? (given) => void act(given) : null, askToStop: setStopped, show, shown: shown?.id ?? 0, cursor: chosen?.id ?? 0 };
  return (
    <>
      <Head page="queue" title="Queue" />
      <main id="main" className={styles.page} data-split={shown ? true : undefined}>
        <div className={styles.scroll}>
          <div className={styles.inner}>
            <div className={styles.head}>
              <h1>Queue</h1>
              {found?.exists && (
                <span className="quiet">
                  {found.totalRunning} running, {count(found.totalWaiting)} waiting, {count(found.totalEnded)} ended
                </span>
              )}
              <span className={styles.grow} />
              {found?.exists && mayAct && (
                <Button icon={found.isPaused ? "play" : "pause"} onClick={() => void act({ act: found.isPaused ? "resume" : "pause" })}>
                  {found.isPaused ? "Start jobs again" : "Pause the queue"}
                </Button>
              )}
            </div>
            {queue.error && <Failure error={queue.error} />}
            {found && !found.exists && (
              <Empty title="No job was queued on this machine yet.">
                <CopyLine text="assay run digits.toml --queue" />
                <p>Each job has its device to itself, and what follows a failed one goes on.</p>
              </Empty>
            )}
            {found?.exists && <Whole queue={found} acts={acts} onAll={isWhole ? null : () => setWhole(true)} />}
          </div>
        </div>
        {shown && <JobLog key={`${shown.id} ${shown.attempt ? 1 : 0}`} job={shown} onClose={() => show(null)} />}
      </main>
      <Dialog
        title={stopped?.state === "running" ? "Stop a running job" : "Take a job out of the line"}
        isOpen={stopped !== null}
        onClose={() => setStopped(null)}
        size="small"
        footer={
          <>
            <Button onClick={() => setStopped(null)}>Keep it</Button>
            <Button
              kind="danger"
              icon="stop"
              onClick={() => {
                if (stopped) void act({ act: "stop", job: stopped.id });
                setStopped(null);
              }}
            >
              Stop job {stopped?.id}
            </Button>
          </>
        }
      >
        <p className={styles.wraps}>{stopped?.title}</p>
        <p className="quiet">{stopped?.state === "running" ? "It gets SIGTERM, saves a checkpoint, and can be resumed." : "It is cancelled before it has started."}</p>
      </Dialog>
    </>
  );
}

function Whole({ queue, acts, onAll }: { queue: QueueFacts; acts: JobActs; onAll: (() => void) | null }) {
  const now = useNow(1);
  const hidden = queue.totalWaiting - queue.waiting.length;
  const hiddenEnded = queue.totalEnded - queue.ended.length;
  return (
    <>
      {queue.isPaused && (
        <p className={styles.notice} role="status">
          <Icon name="pause" size={14} /> The queue is paused: no job starts. Running ones go on.
        </p>
      )}
      {!queue.dispatcher && queue.totalWaiting + queue.totalRunning > 0 && (
        <div className={styles.notice} role="status">
          <Icon name="warning" size={14} /> No dispatcher is at work, so nothing starts. <CopyLine text="assay queue work --detach" />
        </div>
      )}
      <section aria-label="Devices">
        <h2>Devices</h2>
        {queue.devices.length === 0 && <p className="quiet">They are known once a dispatcher has worked.</p>}
        <ul className={styles.lanes}>
          {queue.devices.map((lane) => (
            <DeviceLane key={lane.key} lane={lane} now={now} acts={acts} />
          ))}
        </ul>
      </section>
      <section aria-label="Waiting">
        <h2>
          Waiting <span className="quiet">{count(queue.totalWaiting)}</span>
        </h2>
        {queue.waiting.length === 0 && <p className="quiet">Nothing waits.</p>}
        <ol className={styles.jobs}>
          {queue.waiting.map((job) => (
            <WaitingJob key={job.id} job={job} now={now} acts={acts} />
          ))}
        </ol>
        {hidden > 0 && onAll && <Button onClick={onAll}>{count(hidden)} more wait</Button>}
      </section>
      <section aria-label="Ended">
        <h2>
          Ended <span className="quiet">{count(queue.totalEnded)}</span>
        </h2>
        {queue.ended.length === 0 && <p className="quiet">No job has ended yet.</p>}
        <ul className={styles.jobs}>
          {queue.ended.map((job) => (
            <EndedJob key={job.id} job={job} now={now} acts={acts} />
          ))}
        </ul>
        {hiddenEnded > 0 && onAll && <Button onClick={onAll}>{count(hiddenEnded)} more have ended</Button>}
      </section>
    </>
  );
}

function DeviceLane({ lane, now, acts }: { lane: Lane; now: number; acts: JobActs }) {
  const free = lane.sharedBy - lane.holders.length;
  return (
    <li className={styles.lane} aria-label={lane.name}>
      <div className={styles.device} title={lane.key}>
        <strong>{lane.name}</strong>
        {lane.totalBytes > 0 && <span className="quiet">{bytes(lane.totalBytes)}</span>}
        {lane.sharedBy > 1 && (
          <span className="quiet">
            {lane.holders.length} of {lane.sharedBy} places
          </span>
        )}
      </div>
      <div className={styles.slots}>
        {lane.holders.map((holder, at) =>
          holder.job ? (
            <RunningJob key={holder.job.id} job={holder.job} now={now} acts={acts} />
          ) : (
            <div key={`outside ${at}`} className={styles.outside}>
              A run outside of the queue: process {holder.pid}, <span title={moment(holder.since)}>for {duration(now - holder.since)}</span>
            </div>
          ),
        )}
        {free > 0 && <div className={styles.free}>{free === lane.sharedBy ? "free" : `${free} more free`}</div>}
      </div>
    </li>
  );
}

function RunningJob({ job, now, acts }: { job: JobLine; now: number; acts: JobActs }) {
  const [fetched] = useState(() => ({ at: 0, seconds: null as number | null }));
  if (fetched.seconds !== job.seconds) {
    fetched.seconds = job.seconds;
    fetched.at = now;
  }
  return (
    <div className={styles.job} data-job={job.id} data-cursor={job.id === acts.cursor || undefined} data-shown={job.id === acts.shown || undefined}>
      <Name job={job} icon="play" />
      <span className={styles.facts}>
        <span title={job.started === null ? "" : `since ${moment(job.started)}, process ${job.pid}`}>{job.started === null ? "starts" : duration((job.seconds ?? 0) + Math.max(0, now - fetched.at))}</span>
        <Attempts job={job} />
        {job.timeLimitS !== null && <span>limit {duration(job.timeLimitS)}</span>}
        {job.isStopping && <span className={styles.warn}>stopping</span>}
      </span>
      <Buttons job={job} acts={acts} />
    </div>
  );
}

function WaitingJob({ job, now, acts }: { job: JobLine; now: number; acts: JobActs }) {
  const { act } = acts;
  return (
    <li className={styles.job} data-job={job.id} data-held={job.isHeld || undefined} data-cursor={job.id === acts.cursor || undefined} data-shown={job.id === acts.shown || undefined}>
      <Name job={job} icon={job.isHeld ? "pause" : "history"} />
      <span className={styles.facts}>
        {job.isHeld && <span className={styles.warn}>paused</span>}
        <span>{job.wants}</span>
        <Attempts job={job} />
        {job.failure && <span title={job.reason}>was {job.failure}</span>}
        <span title={moment(job.created)}>{age(job.created, now)}</span>
      </span>
      <Buttons job={job} acts={acts}>
        {act && (
          <>
            <IconButton
              icon={job.isHeld ? "play" : "pause"}
              label={job.isHeld ? `Let job ${job.id} start` : `Pause job ${job.id}`}
              size={14}
              onClick={() => act({ act: job.isHeld ? "resume" : "pause", job: job.id })}
            />
          </>
        )}
      </Buttons>
    </li>
  );
}

function EndedJob({ job, now, acts }: { job: JobLine; now: number; acts: JobActs }) {
  const took = duration(job.seconds);
  return (
    <li className={styles.job} data-job={job.id} data-state={job.state} data-cursor={job.id === acts.cursor || undefined} data-shown={job.id === acts.shown || undefined}>
      <Name job={job} icon={ICONS[job.state]} />
      <span className={styles.facts}>
        {job.failure ? <span className={styles.bad}>{job.failure}</span> : <span>{job.state}</span>}
        {job.reason && (
          <span className={styles.reason} title={job.reason}>
            {job.reason}
          </span>
        )}
        <Attempts job={job} />
        {job.devices.length > 0 && <span>{job.devices.join(", ")}</span>}
        {took && <span>{took}</span>}
        {job.ended !== null && <span title={moment(job.ended)}>{age(job.ended, now)}</span>}
      </span>
      <Buttons job={job} acts={acts} />
    </li>
  );
}

function Name({ job, icon }: { job: JobLine; icon: IconName }) {
  return (
    <span className={styles.name}>
      <Icon name={icon} size={14} className={styles.state} />
      <span className="quiet">{job.id}</span>
      <span className={styles.title} title={[job.title, job.config].filter(Boolean).join("\n")}>
        {job.title}
      </span>
      {job.project && <span className={styles.project}>{job.project}</span>}
    </span>
  );
}

function Attempts({ job }: { job: JobLine }) {
  if (job.maxAttempts < 2 && job.attempt < 2) return null;
  return (
    <span>
      attempt {Math.max(1, job.attempt)} of {job.maxAttempts}
    </span>
  );
}

function Buttons({ job, acts, children }: { job: JobLine; acts: JobActs; children?: React.ReactNode }) {
  const mayStop = acts.act && (job.state === "running" || job.state === "waiting");
  return (
    <span className={styles.buttons}>
      {job.run && job.projectKey !== null && (
        <Link to="/runs/$id" params={{ id: job.run }} search={job.projectKey ? { project: job.projectKey } : {}} className={styles.run} aria-label={`Run ${job.run} of job ${job.id}`}>
          {job.run}
        </Link>
      )}
      {children}
      {(job.attempt > 0 || job.state === "running") && <IconButton icon="file" label={`Log of job ${job.id}`} size={14} aria-pressed={acts.shown === job.id} onClick={() => acts.show(job)} />}
      {mayStop && <IconButton icon="stop" label={`Stop job ${job.id}`} size={14} disabled={job.isStopping} onClick={() => acts.askToStop(job)} />}
    </span>
  );
}

function JobLog({ job, onClose }: { job: JobLine; onClose: () => void }) {
  return (
    <section className={styles.log} aria-label={`Log of job ${job.id}`}>
      <Suspense fallback={null}>
        <TextLog
          address={`api/queue/jobs/${job.id}/text`}
          name={`job ${job.id}`}
          size={job.logBytes}
          isOpen={job.state === "running"}
          hasGrown={(event) => event.jobs?.[job.id] !== undefined || event.version === -1}
          choice={
            <span className={styles.name}>
              <IconButton icon="cross" label="Close the log" size={14} onClick={onClose} />
              <span className="quiet">{job.id}</span>
              <span className={styles.title}>{job.title}</span>
              <span className="quiet">{job.state}</span>
            </span>
          }
        />
      </Suspense>
    </section>
  );
}
