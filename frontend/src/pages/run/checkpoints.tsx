/** Checkpoints: which there are, how large, which one is the best; how to resume from one. */
import { CopyLine } from "../../parts/copy";
import { Empty } from "../../parts/failure";
import { age, bytes, count, moment } from "../../state/format";
import type { TabProps } from "./tab";
import styles from "./run.module.css";

export function Checkpoints({ run }: TabProps) {
  if (!run.checkpoints.length) {
    return (
      <Empty title="This run has no checkpoint.">
        In its config:
        <code>[checkpoint] every = "1 epoch"</code>
      </Empty>
    );
  }
  const now = Date.now() / 1000;
  const latest = run.checkpoints.filter((each) => !each.problem).at(-1);
  return (
    <div className={styles.block}>
      <table className={styles.list}>
        <thead>
          <tr>
            <th className="number">step</th>
            <th>name</th>
            <th className={styles.minor}>kind</th>
            <th className="number">size</th>
            <th>saved</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {[...run.checkpoints].reverse().map((each) => (
            <tr key={each.name}>
              <td className="number">{each.step === null ? "" : count(each.step)}</td>
              <td>{each.name}</td>
              <td className={styles.minor}>{each.kind}</td>
              <td className="number" title={`${each.size} bytes`}>
                {bytes(each.size)}
              </td>
              <td title={each.at === null ? "" : moment(each.at)}>{each.at === null ? "" : age(each.at, now)}</td>
              <td>
                {each.isBest && <span className={styles.kind}>best</span>}
                {each === latest && <span className={styles.kind}>latest</span>}
                {each.problem && <span className={styles.bad}>{each.problem}</span>}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {latest && (
        <div className={styles.buttons}>
          <CopyLine label="resume:" text={`assay resume ${run.line.id}`} />
          <CopyLine label="its weights:" text={`assay.load_model("${run.line.id}", "${latest.step ?? latest.name}")`} />
        </div>
      )}
    </div>
  );
}
