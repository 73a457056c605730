/** Each launch and resume of a run, and everything that happened in order. */
import { CopyLine } from "../../parts/copy";
import { age, count, duration, moment } from "../../state/format";
import { Status } from "../../table/cells";
import { useLimited } from "../../parts/more";
import type { TabProps } from "./tab";
import styles from "./run.module.css";

const MOST_EVENTS = 500;

export function Attempts({ run }: TabProps) {
  const now = Date.now() / 1000;
  const [events, more] = useLimited(run.events, MOST_EVENTS, true);
  return (
    <div className={styles.block}>
      {[...run.attempts].reverse().map((attempt) => (
        <section key={attempt.number} className={styles.attempt}>
          <div className={styles.sectionHead}>
            <h2>Attempt {attempt.number}</h2>
            <Status run={{ status: statusOf(run, attempt), reason: attempt.reason }} />
            <span className="quiet" title={moment(attempt.started)}>
              {age(attempt.started, now)}
              {attempt.duration > 0 && `, ${duration(attempt.duration)}`}, {stepsOf(attempt)}, {attempt.host} pid {attempt.pid}
            </span>
          </div>
          {attempt.reason && <p>{attempt.reason}</p>}
          {attempt.changed.length > 0 && (
            <p>
              Changed since the attempt before: <code>{attempt.changed.join(", ")}</code>
            </p>
          )}
          {attempt.changedCode.length > 0 && (
            <p>
              Code changed since the attempt before: <code>{attempt.changedCode.join(", ")}</code>
            </p>
          )}
          {attempt.traceback && <pre className={styles.traceback}>{attempt.traceback.trim()}</pre>}
          {attempt.command && <CopyLine text={attempt.command} />}
        </section>
      ))}
      <section>
        <h2>Events</h2>
        {more}
        <table className={styles.list}>
          <tbody>
            {events.map((event) => (
              <tr key={`${event.at} ${event.kind} ${event.text}`} data-kind={event.kind}>
                <td title={moment(event.at)}>{moment(event.at).slice(11)}</td>
                <td className="number">{event.step === null ? "" : count(event.step)}</td>
                <td>{event.kind}</td>
                <td>{event.text}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </div>
  );
}

/** Return the steps of an attempt; one that was killed wrote no last one. */
function stepsOf({ fromStep, toStep }: TabProps["run"]["attempts"][number]): string {
  return toStep > fromStep ? `step ${count(fromStep)} to ${count(toStep)}` : `from step ${count(fromStep)}`;
}

/** Return how an attempt ended. One that wrote no end, and was followed by another, was killed. */
function statusOf(run: TabProps["run"], attempt: TabProps["run"]["attempts"][number]): string {
  if (attempt === run.attempts.at(-1)) return run.line.status;
  return attempt.status === "running" ? "killed" : attempt.status;
}
