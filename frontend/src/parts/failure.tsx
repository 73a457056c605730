/** An error in its own words: what, where, how to fix it. The rest of the page goes on working. */
import { ApiError } from "../api/client";
import styles from "./failure.module.css";

export function Failure({ error, title }: { error: unknown; title?: string }) {
  const problem = error instanceof ApiError ? error.problem : { what: String(error), where: "", fix: "" };
  // The mark below an expression is indented by what a terminal writes before it.
  const where = "start" in problem && problem.start !== null ? problem.where.replace(/\n {7}/, "\n") : problem.where;
  return (
    <div className={styles.failure} role="alert">
      <strong>{title ?? problem.what}</strong>
      {title && <p>{problem.what}</p>}
      {where && <pre>{where}</pre>}
      {problem.fix && <p className="quiet">{problem.fix}</p>}
    </div>
  );
}

/** A place where there is nothing yet, and what fills it. */
export function Empty({ title, children }: { title: string; children?: React.ReactNode }) {
  return (
    <div className={styles.empty}>
      <strong>{title}</strong>
      {children}
    </div>
  );
}
