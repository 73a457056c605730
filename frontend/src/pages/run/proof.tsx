/** What was proven about a run, and how to prove it again. */
import { Link } from "@tanstack/react-router";
import { CopyLine } from "../../parts/copy";
import { Icon } from "../../parts/icons";
import { age, moment, whole } from "../../state/format";
import { useShared } from "../../state/site";
import type { TabProps } from "./tab";
import styles from "./run.module.css";

export function Proof({ run }: TabProps) {
  const { project } = useShared();
  const now = Date.now() / 1000;
  const replay = run.commands.find((command) => command.line.startsWith("assay replay"));
  return (
    <div className={styles.block}>
      {run.verdicts.length === 0 && <p className="quiet">Nothing was compared with this run yet.</p>}
      <ul className={styles.verdicts}>
        {[...run.verdicts].reverse().map((verdict) => (
          <li key={`${verdict.at} ${verdict.text}`}>
            <span className={verdict.equal ? styles.good : styles.bad}>
              <Icon name={verdict.equal ? "check" : "cross"} />
            </span>
            <div>
              <strong>{verdict.text}</strong> <span className="quiet" title={moment(verdict.at)}>{age(verdict.at, now)}</span>
              <div className="quiet">
                {verdict.runs
                  .filter((id) => id !== run.line.id)
                  .map((id) => (
                    <Link key={id} to="/runs/$id" params={{ id }} search={project ? { project } : {}}>
                      {id}
                    </Link>
                  ))}
                {verdict.cause && ` cause: ${verdict.cause}`}
                {verdict.note && ` ${verdict.note}`}
              </div>
              {Object.entries(verdict.changed).map(([key, value]) => (
                <div key={key}>
                  <code>{key}</code> {whole(value)}
                </div>
              ))}
            </div>
          </li>
        ))}
      </ul>
      <dl className={styles.pairs}>
        {run.exactness && (
          <div>
            <dt>resume</dt>
            <dd>{run.exactness}</dd>
          </div>
        )}
        {run.configHash && (
          <div>
            <dt>config</dt>
            <dd title={run.configHash}>
              <code>{run.configHash.slice(0, 16)}</code>
            </dd>
          </div>
        )}
        {run.seedlessHash && (
          <div>
            <dt>config without its seed</dt>
            <dd title={run.seedlessHash}>
              <code>{run.seedlessHash.slice(0, 16)}</code>
            </dd>
          </div>
        )}
        {run.snapshot && (
          <div>
            <dt>code</dt>
            <dd title={run.snapshot}>
              <code>{run.snapshot.slice(0, 16)}</code>
            </dd>
          </div>
        )}
        {Object.entries(run.attempts.at(-1)?.seeds ?? {}).map(([name, seed]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              <code>{seed}</code>
            </dd>
          </div>
        ))}
      </dl>
      {replay && (
        <div className={styles.buttons}>
          <CopyLine label="prove it:" text={replay.line} title={`${replay.purpose}. Copy`} />
        </div>
      )}
    </div>
  );
}
