/** The filter: an expression, with the place of a mistake marked under it, and names offered while one is typed. */
import { useEffect, useId, useMemo, useRef, useState, type KeyboardEvent } from "react";
import type { ApiError, ColumnNames } from "../../api/client";
import { IconButton } from "../../parts/button";
import { Icon } from "../../parts/icons";
import { ranked } from "../../parts/picker";
import { Rest } from "../../parts/more";
import { useShortcuts } from "../../parts/shortcuts";
import { useMedia } from "../../state/site";
import styles from "./filter.module.css";

interface FilterProps {
  value: string;
  error: ApiError | null;
  names: ColumnNames | undefined;
  /** `stays` where the text goes on from the one before: a step back leads to what there was before both. */
  onChange: (text: string, stays: boolean) => void;
}

const WAIT_MS = 250;
const MOST_OFFERED = 8;
const FACTS = ["status", "tag", "id", "age", "duration", "created", "step", "best", "label", "note", "reason", "kind", "desc"];
const STATUSES = ["running", "finished", "failed", "stopped", "killed", "unknown"];

export function Filter({ value, error, names, onChange }: FilterProps) {
  const [text, setText] = useState(value);
  const [place, setPlace] = useState(0);
  const [at, setAt] = useState(-1);
  const [isOpen, setOpen] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const field = useRef<HTMLInputElement>(null);
  const id = useId();
  const isNarrow = useMedia("(max-width: 700px)");
  const sent = useRef<string[]>([]);
  const isTyping = useRef(false); // the last text sent was sent in a pause: more may come
  // A text that was sent from here comes back without the spaces around it: more was typed meanwhile.
  useEffect(() => {
    const at = sent.current.indexOf(value);
    sent.current = at < 0 ? [] : sent.current.slice(at + 1);
    if (at >= 0) return;
    setText(value);
    isTyping.current = false;
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  useShortcuts([{ keys: "/", text: "Filter", run: () => field.current?.focus() }]);

  const known = useMemo(
    () =>
      [...FACTS, ...(names?.metrics ?? []), ...(names?.results ?? []), ...(names?.config ?? [])].map((name) => ({
        value: name,
      })),
    [names],
  );
  const word = useMemo(() => wordAt(text, place), [text, place]);
  const matching = useMemo(() => {
    if (!isOpen || word.text.length < 1) return [];
    const before = text.slice(0, word.start).trimEnd();
    const choices = /status\s*(=|!=|==)$/.test(before) ? STATUSES.map((each) => ({ value: each })) : known;
    const found = ranked(choices, word.text);
    return found.length === 1 && found[0]!.value === word.text ? [] : found;
  }, [isOpen, known, text, word]);
  const offered = matching.slice(0, MOST_OFFERED);

  const problem = error?.isOfFilter ? error.problem : null;
  const isShown = problem !== null && text.trimEnd() === value && !offered.length;
  const send = (fresh: string, isPause = false) => {
    clearTimeout(timer.current);
    const asked = fresh.trim();
    if (asked !== (sent.current.at(-1) ?? value)) {
      sent.current.push(asked);
      onChange(asked, isTyping.current);
      isTyping.current = true;
    }
    isTyping.current &&= isPause;
  };
  const type = (fresh: string, cursor: number) => {
    setText(fresh);
    setPlace(cursor);
    setAt(-1);
    setOpen(true);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => send(fresh, true), WAIT_MS);
  };
  const take = (name: string) => {
    const plain = /^[^\W\d][\w./:@-]*$/.test(name) ? name : `\`${name}\``;
    const fresh = `${text.slice(0, word.start)}${plain} ${text.slice(word.end).trimStart()}`;
    setText(fresh);
    setOpen(false);
    const cursor = word.start + plain.length + 1;
    requestAnimationFrame(() => field.current?.setSelectionRange(cursor, cursor));
    clearTimeout(timer.current);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" && offered.length) setAt((before) => (before + 1) % offered.length);
    else if (event.key === "ArrowUp" && offered.length) setAt((before) => (before - 1 + offered.length) % offered.length);
    else if ((event.key === "Enter" || event.key === "Tab") && offered[at]) take(offered[at].value);
    else if (event.key === "Enter") {
      setOpen(false);
      send(text);
    } else if (event.key === "Escape") {
      if (offered.length) setOpen(false);
      else if (text) {
        setText("");
        send("");
      } else field.current?.blur();
      event.stopPropagation();
    } else return;
    if (event.key !== "Tab" || offered[at]) event.preventDefault();
  };
  return (
    <div className={styles.filter} data-wrong={isShown || undefined} role="search">
      <Icon name="search" className={styles.icon} />
      <div className={styles.field}>
        <input
          ref={field}
          value={text}
          placeholder={isNarrow ? "filter" : "valid/acc > 0.9 and model.width = 64"}
          role="combobox"
          aria-label="Filter runs"
          aria-invalid={isShown}
          aria-describedby={isShown ? `${id}-problem` : undefined}
          aria-expanded={offered.length > 0}
          aria-controls={`${id}-offered`}
          aria-autocomplete="list"
          aria-activedescendant={offered[at] ? `${id}-${at}` : undefined}
          spellCheck={false}
          autoComplete="off"
          autoCapitalize="off"
          onChange={(event) => type(event.target.value, event.target.selectionStart ?? event.target.value.length)}
          onSelect={(event) => setPlace(event.currentTarget.selectionStart ?? 0)}
          onFocus={() => (isTyping.current = false)} // not when the field is left: the last of the text may still wait
          onBlur={() => setOpen(false)}
          onKeyDown={onKeyDown}
        />
        {isShown && (
          <div className={styles.mark} aria-hidden="true">
            <span>{text.slice(0, problem.start!)}</span>
            <u>{text.slice(problem.start!, problem.end ?? undefined) || "  "}</u>
          </div>
        )}
      </div>
      {text && (
        <IconButton
          icon="cross"
          label="Clear the filter"
          size={14}
          className={styles.clear}
          onClick={() => {
            isTyping.current = false;
            setText("");
            send("");
            field.current?.focus();
          }}
        />
      )}
      <div className={styles.offered} id={`${id}-offered`} role="listbox" aria-label="Names" hidden={!offered.length}>
        {offered.map((choice, index) => (
          // The field handles the keyboard for all of them.
          // eslint-disable-next-line jsx-a11y/click-events-have-key-events, jsx-a11y/interactive-supports-focus
          <div
            key={choice.value}
            id={`${id}-${index}`}
            role="option"
            aria-selected={index === at}
            className={styles.choice}
            onPointerDown={(event) => event.preventDefault()}
            onClick={() => take(choice.value)}
          >
            {choice.value}
          </div>
        ))}
        <Rest count={matching.length - offered.length} at="type on" />
      </div>
      {isShown && (
        <div className={styles.problem} id={`${id}-problem`} role="alert">
          {problem.what} {problem.fix && <span className="quiet">{problem.fix}</span>}
        </div>
      )}
    </div>
  );
}

/** Return the name that is typed at a place of an expression; nothing inside of quotes. */
export function wordAt(text: string, place: number): { text: string; start: number; end: number } {
  const before = text.slice(0, place);
  const isQuoted = (before.match(/"/g)?.length ?? 0) % 2 === 1 || (before.match(/'/g)?.length ?? 0) % 2 === 1;
  const start = /[\w./:@-]*$/.exec(before)!.index;
  const end = place + /^[\w./:@-]*/.exec(text.slice(place))![0].length;
  const word = text.slice(start, end);
  const isOperator = /^(and|or|not|in)$/i.test(word) || /^[\d.+-]/.test(word);
  return isQuoted || isOperator ? { text: "", start: place, end: place } : { text: word, start, end };
}
