/** The filter: an expression, with the place of a mistake marked under it. */
import { useEffect, useRef, useState } from "react";
import { ApiError, type ColumnNames } from "../../api/client";
import { Icon } from "../../parts/icons";
import styles from "./filter.module.css";

interface FilterProps {
  value: string;
  error: ApiError | null;
  names: ColumnNames | undefined;
  onChange: (text: string) => void;
}

const WAIT_MS = 250;

export function Filter({ value, error, onChange }: FilterProps) {
  const [text, setText] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const problem = error?.problem.start !== null && error?.problem.start !== undefined ? error.problem : null;
  const send = (fresh: string) => {
    clearTimeout(timer.current);
    onChange(fresh);
  };
  return (
    <div className={styles.filter} data-wrong={problem ? true : undefined} role="search">
      <Icon name="search" className={styles.icon} />
      <div className={styles.field}>
        <input
          ref={field}
          id="filter"
          value={text}
          placeholder="valid/acc > 0.9 and model.width = 64"
          aria-label="Filter runs"
          aria-invalid={problem !== null}
          aria-describedby={problem ? "filter-problem" : undefined}
          spellCheck={false}
          autoComplete="off"
          onChange={(event) => {
            const fresh = event.target.value;
            setText(fresh);
            clearTimeout(timer.current);
            timer.current = setTimeout(() => onChange(fresh), WAIT_MS);
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter") send(text);
            if (event.key === "Escape") {
              if (text) {
                setText("");
                send("");
              } else field.current?.blur();
              event.stopPropagation();
            }
          }}
        />
        {problem && text === value && (
          <div className={styles.mark} aria-hidden="true">
            <span>{text.slice(0, problem.start!)}</span>
            <u>{text.slice(problem.start!, problem.end ?? undefined) || " "}</u>
          </div>
        )}
      </div>
      {problem && text === value && (
        <div className={styles.problem} id="filter-problem" role="alert">
          {problem.what} {problem.fix && <span className="quiet">{problem.fix}</span>}
        </div>
      )}
    </div>
  );
}
