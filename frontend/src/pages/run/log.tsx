/** What a run said: its log, what it printed, its other ranks; as long as they are, and going on while it trains. */
import { Button } from "../../parts/button";
import { Empty } from "../../parts/failure";
import { TextLog } from "../../parts/text-log";
import { bytes as size } from "../../state/format";
import { useShared } from "../../state/site";
import type { TabProps } from "./tab";
import styles from "./run.module.css";

export function Log({ run, search, onChange }: TabProps) {
  const { project } = useShared();
  const id = run.line.id;
  const texts = run.texts;
  const name = texts.some((each) => each.name === search.at) ? search.at! : (texts.find((each) => each.size > 0)?.name ?? "");
  if (!texts.length || !name) {
    return <Empty title="Nothing was written yet.">{run.line.status === "running" ? "What the run says comes here by itself." : "This run said nothing."}</Empty>;
  }
  const query = new URLSearchParams({ name, ...(project && { project }) });
  return (
    <TextLog
      key={name}
      address={`api/runs/${id}/text?${query.toString()}`}
      name={name}
      size={texts.find((each) => each.name === name)!.size}
      isOpen={run.line.status === "running"}
      hasGrown={(event) => Boolean(event.files?.[id] || event.changed?.includes(id))}
      choice={
        <div className={styles.texts} role="toolbar" aria-label="Texts">
          {texts.map((each) => (
            <Button key={each.name} kind={each.name === name ? "plain" : "quiet"} aria-pressed={each.name === name} title={size(each.size)} onClick={() => onChange({ at: each.name }, true)}>
              {each.name}
            </Button>
          ))}
        </div>
      }
    />
  );
}
