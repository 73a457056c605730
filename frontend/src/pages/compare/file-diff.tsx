/** One file in the baseline and in another run, side by side. */
import { useState } from "react";
import type { RunLine } from "../../api/client";
import { Button } from "../../parts/button";
import { Diff } from "../../parts/code";
import { Failure } from "../../parts/failure";
import { useMedia, useShared } from "../../state/site";
import { useFile } from "../run/code-tab";
import styles from "./compare.module.css";

interface FileDiffProps {
  base: RunLine;
  others: readonly { run: RunLine; change: string }[];
  names: Readonly<Record<string, string>>;
  path: string;
}

export function FileDiff({ base, others, names, path }: FileDiffProps) {
  const { isDark } = useShared();
  const isWide = useMedia("(min-width: 1000px)");
  const [at, setAt] = useState(0);
  const other = others[at] ?? others[0]!;
  const left = useFile(other.change === "added" ? "" : base.id, path);
  const right = useFile(other.change === "removed" ? "" : other.run.id, path);
  const error = left.error ?? right.error;
  const isReady = (other.change === "added" || left.data !== undefined) && (other.change === "removed" || right.data !== undefined);
  return (
    <div className={styles.diff}>
      {others.length > 1 && (
        <div className={styles.choices} role="toolbar" aria-label="Against">
          {others.map(({ run }, index) => (
            <Button key={run.id} kind={index === at ? "plain" : "quiet"} aria-pressed={index === at} onClick={() => setAt(index)}>
              {names[run.id] ?? run.id}
            </Button>
          ))}
        </div>
      )}
      {error ? <Failure error={error} /> : isReady && <Diff left={left.data ?? ""} right={right.data ?? ""} path={path} isDark={isDark} isWide={isWide} />}
    </div>
  );
}
