/** The runs on a narrow screen: a card each. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, type CSSProperties } from "react";
import { Icon } from "../parts/icons";
import { cell, count, duration } from "../state/format";
import { colorAt, useSlots } from "../state/colors";
import { groupId, idsOf } from "../state/rows";
import { useNow } from "../state/site";
import { GroupCell, RunCell, Status } from "./cells";
import { isFact, shortName } from "./columns";
import { useSparks } from "./sparks";
import type { RunsTableProps } from "./table";
import styles from "./cards.module.css";

const CARD = 86;
const MOST_VALUES = 3;

export function Cards(props: Omit<RunsTableProps, "addColumn"> & { own: readonly string[] }) {
  const { rows, lines, selected, choosing, isDark, project, onOpen, own } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const slots = useSlots();
  const virtual = useVirtualizer({ count: lines.total ?? 0, getScrollElement: () => scroller.current, estimateSize: () => CARD, overscan: 8 });
  const items = virtual.getVirtualItems();
  const first = items[0]?.index ?? 0;
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => rows.ensure(...lines.within(first, last)), [rows, lines, first, last]);
  const sparks = useSparks(rows, first, last, project, true);
  const now = useNow(1);
  return (
    <div ref={scroller} className={styles.scroller}>
      <ul style={{ height: virtual.getTotalSize(), position: "relative" }}>
        {items.map((item) => {
          const line = lines.lineAt(item.index);
          const style = { transform: `translateY(${item.start}px)` };
          if (!line) return <li key={item.index} className={styles.card} style={style} />;
          const run = line.kind === "run" ? line.run : line.group.newest;
          const id = line.kind === "run" ? run.id : groupId(line.group);
          const color = colorAt(slots.get(id), isDark);
          const isSelected = idsOf(line).every((each) => selected.has(each));
          const values = own.slice(0, MOST_VALUES).map((name) => ({
            name,
            value: line.kind === "run" ? line.run.cells[own.indexOf(name)] : undefined,
          }));
          return (
            <li key={item.index} className={styles.card} style={style} data-selected={isSelected || undefined} data-run={line.kind === "run" ? id : undefined}>
              <button
                type="button"
                className={styles.check}
                aria-pressed={isSelected}
                aria-label={`Select ${run.tag || run.id}`}
                onClick={() => choosing.toggle(idsOf(line), item.index)}
                style={{ "--dot": color } as CSSProperties}
              >
                {isSelected && <Icon name="check" size={12} />}
              </button>
              <button type="button" className={styles.main} onClick={() => onOpen(run)}>
                <span className={styles.line}>
                  <strong className="ellipsis">{run.tag || run.id}</strong>
                  {line.kind === "run" ? <Status run={run} /> : <span className="quiet">{count(line.group.ids.length)} runs</span>}
                </span>
                <span className={styles.line}>
                  {line.kind === "run" && !run.best ? (
                    <code className="quiet">{run.id}</code>
                  ) : line.kind === "run" ? (
                    <RunCell run={run} name="best" value={undefined} now={now} fetchedAt={rows.fetchedAt} spark={sparks(run)} color={color} />
                  ) : (
                    <GroupCell group={line.group} name="best" value={line.group.cells[props.columns.findIndex((each) => each.name === "best")]} now={now} />
                  )}
                  <span className="quiet">{duration(run.duration)}</span>
                </span>
                <span className={styles.values}>
                  {values
                    .filter((each) => each.value !== undefined && each.value !== null && !isFact(each.name))
                    .map((each) => (
                      <span key={each.name}>
                        <span className="quiet">{shortName(each.name)}</span> {cell(each.value)}
                      </span>
                    ))}
                </span>
              </button>
            </li>
          );
        })}
      </ul>
    </div>
  );
}
