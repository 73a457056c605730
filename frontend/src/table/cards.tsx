/** The runs on a narrow screen: a card each. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, type CSSProperties } from "react";
import { Icon } from "../parts/icons";
import { Rest } from "../parts/more";
import { cell, count, duration } from "../state/format";
import { colorAt, useSlots } from "../state/colors";
import { groupId, idsOf } from "../state/rows";
import { useNow } from "../state/site";
import { GroupCell, RunCell, Status, Warnings } from "./cells";
import { isFact, shortName } from "./columns";
import { cellOf } from "./row";
import { useSparks } from "./sparks";
import { usePlaces, type RunsTableProps } from "./table";
import styles from "./cards.module.css";

const CARD = 86;
const MOST_VALUES = 3;

export function Cards(props: Omit<RunsTableProps, "addColumn"> & { own: readonly string[] }) {
  const { rows, lines, selected, choosing, isDark, project, onOpen, own, looks, shownNames } = props;
  const places = usePlaces(rows);
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
          const color = looks.get(id)?.color ?? colorAt(slots.get(id), isDark);
          const name = line.kind === "group" ? line.group.short : (shownNames.get(id)?.short ?? (run.tag || run.id));
          const isSelected = idsOf(line).every((each) => selected.has(each));
          const values = own.slice(0, MOST_VALUES).map((name) => ({
            name,
            value: cellOf(line, name, places),
          }));
          return (
            <li key={item.index} className={styles.card} style={style} data-selected={isSelected || undefined} data-run={line.kind === "run" ? id : undefined}>
              <button
                type="button"
                className={styles.check}
                aria-pressed={isSelected}
                aria-label={`Select ${name}`}
                onClick={() => choosing.toggle(idsOf(line), item.index)}
                style={{ "--dot": color } as CSSProperties}
              >
                {isSelected && <Icon name="check" size={12} />}
              </button>
              <button type="button" className={styles.main} onClick={() => onOpen(run)}>
                <span className={styles.line}>
                  <strong className="ellipsis">{name}</strong>
                  {line.kind === "run" ? <Status run={run} /> : <span className="quiet" style={{ whiteSpace: "nowrap" }}>
                      <Warnings of={line.group.warnings} /> n = {count(line.group.ids.length)}
                    </span>}
                </span>
                <span className={styles.line}>
                  {line.kind === "run" && !run.best ? (
                    <code className="quiet">{run.id}</code>
                  ) : line.kind === "run" ? (
                    <RunCell run={run} shownName={undefined} name="best" value={undefined} now={now} fetchedAt={rows.fetchedAt} spark={sparks(run)} color={color} />
                  ) : (
                    <span />
                  )}
                  <span className="quiet">{duration(run.duration)}</span>
                </span>
                <span className={styles.values}>
                  {values
                    .filter((each) => each.value !== undefined && each.value !== null && !isFact(each.name))
                    .map((each) => (
                      <span key={each.name}>
                        <span className="quiet">{shortName(each.name)}</span>{" "}
                        {line.kind === "group" ? <GroupCell group={line.group} name={each.name} value={each.value} now={now} /> : cell(each.value)}
                      </span>
                    ))}
                  <Rest count={own.length - MOST_VALUES} of="columns" at="in a wider window" />
                </span>
              </button>
            </li>
          );
        })}
      </ul>
    </div>
  );
}
