/** A list to choose from by typing: columns, metrics, files. */
import * as Popover from "@radix-ui/react-popover";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useId, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import styles from "./picker.module.css";

export interface Choice {
  value: string;
  /** Where it comes from: shown faintly at the right. */
  kind?: string;
}

interface PickerProps {
  trigger: ReactNode;
  label: string;
  placeholder: string;
  choices: readonly Choice[];
  onChoose: (value: string) => void;
  /** Whether several are chosen one after the other. */
  stays?: boolean;
  chosen?: ReadonlySet<string>;
  empty?: string;
  isOpenAtFirst?: boolean;
  onClose?: () => void;
}

export function Picker({
  trigger,
  label,
  placeholder,
  choices,
  onChoose,
  stays = false,
  chosen,
  empty = "nothing is called that",
  isOpenAtFirst = false,
  onClose,
}: PickerProps) {
  const [isOpen, setIsOpen] = useState(isOpenAtFirst);
  const setOpen = (open: boolean) => {
    setIsOpen(open);
    if (!open) onClose?.();
  };
  return (
    <Popover.Root open={isOpen} onOpenChange={setOpen}>
      <Popover.Trigger asChild>{trigger}</Popover.Trigger>
      <Popover.Portal>
        <Popover.Content className={styles.picker} align="end" sideOffset={4} collisionPadding={8} aria-label={label}>
          <ChoiceList
            label={label}
            placeholder={placeholder}
            choices={choices}
            chosen={chosen}
            empty={empty}
            onChoose={(value) => {
              onChoose(value);
              if (!stays) setOpen(false);
            }}
          />
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}

interface ListProps {
  label: string;
  placeholder: string;
  choices: readonly Choice[];
  chosen?: ReadonlySet<string> | undefined;
  empty: string;
  /** Whether the list is narrowed here; else whoever hears of the text does it. */
  isRanked?: boolean;
  onText?: (text: string) => void;
  onChoose: (value: string) => void;
}

const ROW = 28;

export function ChoiceList({ label, placeholder, choices, chosen, empty, isRanked = true, onText, onChoose }: ListProps) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const id = useId();
  const scroller = useRef<HTMLDivElement>(null);
  const found = useMemo(() => (isRanked ? ranked(choices, text) : [...choices]), [choices, text, isRanked]);
  const virtual = useVirtualizer({ count: found.length, getScrollElement: () => scroller.current, estimateSize: () => ROW, overscan: 6 });
  const move = (to: number) => {
    const next = Math.max(0, Math.min(found.length - 1, to));
    setAt(next);
    virtual.scrollToIndex(next);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") move(at + 1);
    else if (event.key === "ArrowUp") move(at - 1);
    else if (event.key === "Enter" && found[at]) onChoose(found[at].value);
    else return;
    event.preventDefault();
  };
  return (
    <>
      <input
        className={styles.input}
        value={text}
        placeholder={placeholder}
        aria-label={label}
        role="combobox"
        aria-expanded="true"
        aria-controls={id}
        aria-activedescendant={found[at] ? `${id}-${at}` : undefined}
        onChange={(event) => {
          setText(event.target.value);
          onText?.(event.target.value);
          setAt(0);
        }}
        onKeyDown={onKeyDown}
      />
      <div ref={scroller} className={styles.list} id={id} role="listbox" aria-label={label} tabIndex={-1}>
        <div style={{ height: virtual.getTotalSize(), position: "relative" }} role="presentation">
          {virtual.getVirtualItems().map((item) => {
            const choice = found[item.index]!;
            const isChosen = chosen?.has(choice.value) ?? false;
            return (
              // The input handles the keyboard for all of them.
              // eslint-disable-next-line jsx-a11y/click-events-have-key-events, jsx-a11y/interactive-supports-focus
              <div
                key={choice.value}
                id={`${id}-${item.index}`}
                role="option"
                aria-selected={isChosen}
                className={styles.item}
                data-active={item.index === at || undefined}
                style={{ transform: `translateY(${item.start}px)` }}
                onPointerMove={() => setAt(item.index)}
                onClick={() => onChoose(choice.value)}
              >
                <span className={styles.check}>{isChosen ? "✓" : ""}</span>
                <span className={styles.name} title={choice.value}>
                  {choice.value}
                </span>
                {choice.kind && <span className={styles.kind}>{choice.kind}</span>}
              </div>
            );
          })}
        </div>
        {found.length === 0 && <p className={styles.none}>{empty}</p>}
      </div>
    </>
  );
}

/** Return the choices that hold all words, those that begin with the text first. */
export function ranked(choices: readonly Choice[], text: string): Choice[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [...choices];
  const found: [number, Choice][] = [];
  for (const choice of choices) {
    const name = choice.value.toLowerCase();
    if (!words.every((word) => name.includes(word))) continue;
    const first = words[0]!;
    const rank = name === first ? 0 : name.startsWith(first) ? 1 : /[./_-]/.test(name[name.indexOf(first) - 1] ?? "") ? 2 : 3;
    found.push([rank, choice]);
  }
  return found.sort((a, b) => a[0] - b[0]).map(([, choice]) => choice);
}
