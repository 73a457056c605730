/** Verdicts about the runs of a comparison: the first step, module and operation in which two of them differ. */
import { Link } from "@tanstack/react-router";
import type { Schema } from "../../api/client";
import { CopyLine } from "../../parts/copy";
import { Icon } from "../../parts/icons";
import { age, count, moment, whole } from "../../state/format";
import { useShared } from "../../state/site";
import styles from "./divergence.module.css";

type Facts = Schema["CompareFacts"];
type Verdict = Schema["VerdictFacts"];

export function Divergence({ facts }: { facts: Facts }) {
  const [first, second] = facts.runs;
  const isOpen = facts.runs.length === 2 && !facts.verdicts.some((verdict) => verdict.question === "diverge");
  if (facts.verdicts.length === 0 && !isOpen) return null;
  return (
    <section className={styles.section} aria-label="First difference">
      {facts.verdicts.map((verdict) => (
        <One key={`${verdict.at} ${verdict.text}`} verdict={verdict} />
      ))}
      {isOpen && first && second && (
        <CopyLine label="find the first step, module and operation that differ:" text={`assay diverge ${first.id} ${second.id}`} title="Copy" />
      )}
    </section>
  );
}

function One({ verdict }: { verdict: Verdict }) {
  const now = Date.now() / 1000;
  const changed = Object.entries(verdict.changed);
  return (
    <article className={styles.verdict}>
      <p>
        <span className={verdict.equal ? styles.good : styles.bad}>
          <Icon name={verdict.equal ? "check" : "cross"} size={14} />
        </span>{" "}
        <strong>
          {verdict.question}: {verdict.equal ? "equal bits" : "not equal"}
        </strong>
        , steps {count(verdict.firstStep)} to {count(verdict.lastStep)}
        {verdict.cause && (
          <>
            , cause: <strong>{verdict.cause}</strong>
          </>
        )}{" "}
        <span className="quiet" title={moment(verdict.at)}>
          {age(verdict.at, now)}
        </span>
      </p>
      {verdict.difference && <First verdict={verdict} difference={verdict.difference} />}
      {changed.length > 0 && (
        <ul className={styles.changed} aria-label="Changed inputs">
          {changed.map(([key, value]) => (
            <li key={key}>
              <code>{key}</code> {Array.isArray(value) ? value.map((each) => whole(each) || "-").join(" → ") : whole(value)}
            </li>
          ))}
        </ul>
      )}
      {verdict.note && <p className="quiet">{verdict.note}</p>}
    </article>
  );
}

function First({ verdict, difference }: { verdict: Verdict; difference: NonNullable<Verdict["difference"]> }) {
  const { project } = useShared();
  const repeated = difference.op && difference.call > 1 ? ` (call ${difference.call} of the step)` : "";
  return (
    <div className={styles.wide}>
      <table className={styles.table}>
        <thead>
          <tr>
            <th scope="col">step</th>
            <th scope="col">phase</th>
            <th scope="col">module</th>
            <th scope="col">{difference.op ? "operation" : "tensor"}</th>
            {verdict.runs.slice(0, 2).map((id) => (
              <th key={id} scope="col">
                <Link to="/runs/$id" params={{ id }} search={project ? { project } : {}}>
                  {id}
                </Link>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <tr>
            <td>{count(difference.step)}</td>
            <td>{difference.phase}</td>
            <td>{difference.module ? <code>{difference.module}</code> : <span className="quiet">-</span>}</td>
            <td>
              <code>{difference.op || difference.name}</code>
              {repeated}
            </td>
            <td>
              <code>{difference.left || "-"}</code>
            </td>
            <td>
              <code>{difference.right || "-"}</code>
            </td>
          </tr>
        </tbody>
      </table>
    </div>
  );
}
