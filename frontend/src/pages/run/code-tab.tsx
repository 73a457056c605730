/** The code of a run as it was: its files, one of them, and what changed since the run before. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { api, bytes, data, type Schema } from "../../api/client";
import { Button } from "../../parts/button";
import { Code, Diff } from "../../parts/code";
import { Empty, Failure } from "../../parts/failure";
import { Icon } from "../../parts/icons";
import { bytes as size } from "../../state/format";
import { useMedia, useShared } from "../../state/site";
import type { TabProps } from "./tab";
import styles from "./run.module.css";

type File = Schema["CodeLine"];

export const PATCH = "(not committed)";

export function CodeTab({ run, search, onChange }: TabProps) {
  const { project, isDark } = useShared();
  const isWide = useMedia("(min-width: 1000px)");
  const [isDiff, setDiff] = useState(true);
  const code = useQuery({
    queryKey: ["code", project, run.line.id, run.line.attempts],
    queryFn: () => data(api.GET("/api/runs/{run_id}/code", { params: { path: { run_id: run.line.id }, query: { project } } })),
    staleTime: Infinity,
  });
  const found = code.data;
  const files = found?.files ?? [];
  const first = files.find((file) => file.change === "changed") ?? files.find((file) => /\.py$/.test(file.path)) ?? files[0];
  const at = search.at || (first?.path ?? "");
  const file = files.find((each) => each.path === at);
  const isChanged = file !== undefined && file.change !== "";
  const text = useFile(run.line.id, at && file?.change !== "removed" && at !== PATCH ? at : "");
  const before = useFile(found?.previous ?? "", isChanged && file.change !== "added" ? at : "");
  if (code.error) return <Failure error={code.error} />;
  if (!found) return null;
  if (found.missing) return <Empty title="There is no code to show.">{found.missing}</Empty>;
  return (
    <div className={styles.code}>
      <nav className={styles.files} aria-label="Files">
        {run.gitCommit && (
          <p className={styles.commit}>
            git <code title={run.gitCommit}>{run.gitCommit.slice(0, 10)}</code>
            {run.gitDirty && " with changes"}
          </p>
        )}
        <Files files={files} at={at} onOpen={(path) => onChange({ at: path }, true)} />
        {found.patch && (
          <button type="button" className={styles.file} aria-current={at === PATCH || undefined} onClick={() => onChange({ at: PATCH }, true)}>
            <Icon name="file" size={14} /> {PATCH}
          </button>
        )}
        {run.leftOut.length > 0 && (
          <p className="quiet" title={run.leftOut.join("\n")}>
            {run.leftOut.length} files left out
          </p>
        )}
      </nav>
      <section className={styles.source} aria-label={at}>
        <div className={styles.sourceBar}>
          <strong className="ellipsis">{at}</strong>
          {file && <span className="quiet">{size(file.size)}</span>}
          <span className={styles.grow} />
          {isChanged && (
            <Button kind="quiet" aria-pressed={isDiff} icon="compare" onClick={() => setDiff(!isDiff)}>
              {isDiff ? "Changes" : "Whole file"} <span className="quiet">since {found.previous}</span>
            </Button>
          )}
        </div>
        <div className={styles.sourceText}>
          {at === PATCH ? (
            <Code text={found.patch} path="dirty.patch" isDark={isDark} />
          ) : text.error ? (
            <Failure error={text.error} />
          ) : isChanged && isDiff && (before.data !== undefined || file.change === "added") && (text.data !== undefined || file.change === "removed") ? (
            <Diff left={before.data ?? ""} right={text.data ?? ""} path={at} isDark={isDark} isWide={isWide} />
          ) : (
            text.data !== undefined && <Code text={text.data} path={at} isDark={isDark} />
          )}
        </div>
      </section>
    </div>
  );
}

/** Return one file of a snapshot as text; nothing for "". */
export function useFile(id: string, path: string) {
  const { project } = useShared();
  return useQuery({
    queryKey: ["file", project, id, path],
    queryFn: async () => {
      const query = new URLSearchParams({ path, ...(project && { project }) });
      return new TextDecoder().decode(await bytes(`api/runs/${id}/code/file?${query.toString()}`));
    },
    enabled: id !== "" && path !== "",
    staleTime: Infinity,
  });
}

function Files({ files, at, onOpen }: { files: readonly File[]; at: string; onOpen: (path: string) => void }) {
  const tree = useMemo(() => {
    const found = new Map<string, File[]>();
    for (const file of files) {
      const cut = file.path.lastIndexOf("/");
      const name = cut < 0 ? "" : file.path.slice(0, cut);
      found.set(name, [...(found.get(name) ?? []), file]);
    }
    return [...found].sort(([a], [b]) => (a < b ? -1 : 1));
  }, [files]);
  return (
    <ul>
      {tree.map(([folder, inside]) => (
        <li key={folder}>
          {folder && (
            <span className={styles.folder} title={folder}>
              <Icon name="folder" size={14} /> <span className="ellipsis">{folder}</span>
            </span>
          )}
          <ul>
            {inside.map((file) => (
              <li key={file.path}>
                <button type="button" className={styles.file} data-inside={folder !== "" || undefined} aria-current={file.path === at || undefined} onClick={() => onOpen(file.path)}>
                  <Icon name="file" size={14} />
                  <span className="ellipsis">{file.path.slice(folder ? folder.length + 1 : 0)}</span>
                  {file.change && (
                    <span className={styles.change} data-change={file.change} title={`${file.change} since the run before`}>
                      {file.change[0]!.toUpperCase()}
                    </span>
                  )}
                </button>
              </li>
            ))}
          </ul>
        </li>
      ))}
    </ul>
  );
}
