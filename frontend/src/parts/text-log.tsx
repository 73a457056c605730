/** A text file that grows: fetched in parts from its end, followed, searched, with ANSI colours. */
import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { bytes } from "../api/client";
import type { LiveEvent } from "../api/live";
import { bytes as size, count } from "../state/format";
import { useLive } from "../state/site";
import { lastState, plain, spansOf } from "./ansi";
import { Button, IconButton } from "./button";
import { Failure } from "./failure";
import { Icon } from "./icons";
import { Rest } from "./more";
import styles from "./text-log.module.css";

const PART = 1 << 20;
const LINE = 18;
const MOST_CHARACTERS = 4_000;
const ERROR = /\b(Traceback \(most recent call last\)|[A-Z]\w*(?:Error|Exception)\b|ERROR|CRITICAL|FAILED|error:)/;

interface Text {
  lines: string[];
  /** Where the first line begins in the file; what lies before it was not fetched. */
  start: number;
  /** Up to where the file was read. */
  end: number;
  /** A last line without its end. */
  rest: string;
}

const NOTHING: Text = { lines: [], start: 0, end: 0, rest: "" };

interface TextLogProps {
  /** Address of the text below the root of the site, with its query but `start` and `end`. */
  address: string;
  name: string;
  /** How long the text was when it was last heard of. */
  size: number;
  /** Whether more is written now: the end is followed then. */
  isOpen: boolean;
  /** Whether an event tells that the text is longer. */
  hasGrown: (event: LiveEvent) => boolean;
  /** What stands left in the bar. */
  choice: React.ReactNode;
}

export function TextLog({ address, name, size: known, isOpen, hasGrown, choice }: TextLogProps) {
  const [text, setText] = useState<Text>(NOTHING);
  const [error, setError] = useState<unknown>(null);
  const [query, setQuery] = useState("");
  const [at, setAt] = useState(0);
  const [follows, setFollows] = useState(isOpen);
  const scroller = useRef<HTMLDivElement>(null);
  const latest = useRef(text);
  // One part at a time, in the order in which they are asked for.
  const turn = useRef(Promise.resolve());
  const isMoreComing = useRef(false);
  const inTurn = useCallback((work: () => Promise<void>): Promise<void> => {
    turn.current = turn.current.then(work).catch(setError);
    return turn.current;
  }, []);

  const fetchPart = useCallback(
    async (start: number, end: number): Promise<Uint8Array> => {
      const range = `start=${start}&end=${end}`;
      return new Uint8Array(await bytes(`${address}${address.includes("?") ? "&" : "?"}${range}`));
    },
    [address],
  );

  // Forward: what was written since.
  const more = useCallback(async () => {
    if (isMoreComing.current) return;
    isMoreComing.current = true;
    await inTurn(async () => {
      // What is written from here on may be missing in the answers.
      isMoreComing.current = false;
      for (;;) {
        const before = latest.current;
        const part = await fetchPart(before.end, before.end + PART);
        if (!part.length) break;
        const fresh = appended(before, part);
        latest.current = fresh;
        setText(fresh);
        setError(null);
        if (part.length < PART) break;
      }
    });
  }, [fetchPart, inTurn]);

  // At first only the end: that is where one looks.
  useEffect(() => {
    const start = Math.max(0, known - PART);
    latest.current = { ...NOTHING, start, end: start };
    setText(latest.current);
    void more();
    // eslint-disable-next-line react-hooks/exhaustive-deps -- the size is that of the moment when this was opened
  }, [more]);
  useLive((event) => {
    if (hasGrown(event)) void more();
  });

  /** Fetch the part before what is here, or all of them. */
  const earlier = useCallback(
    (isAll = false) =>
      inTurn(async () => {
        do {
          const before = latest.current;
          if (before.start === 0) return;
          const start = Math.max(0, before.start - 4 * PART);
          const fresh = prepended(before, await fetchPart(start, before.start), start);
          latest.current = fresh;
          setText(fresh);
          setError(null);
        } while (isAll);
      }),
    [fetchPart, inTurn],
  );

  const lines = text.lines;
  const virtual = useVirtualizer({ count: lines.length, getScrollElement: () => scroller.current, estimateSize: () => LINE, overscan: 30 });
  useEffect(() => {
    if (follows && lines.length) virtual.scrollToIndex(lines.length - 1, { align: "end" });
    // eslint-disable-next-line react-hooks/exhaustive-deps -- only when there are more lines
  }, [follows, lines.length]);

  const hits = useMemo(() => {
    if (!query) return [];
    const wanted = query.toLowerCase();
    const found: number[] = [];
    for (let i = 0; i < lines.length && found.length < 10_000; i++) if (plain(lines[i]!).toLowerCase().includes(wanted)) found.push(i);
    return found;
  }, [lines, query]);
  const go = (to: number) => {
    if (!hits.length) return;
    const next = (to + hits.length) % hits.length;
    setAt(next);
    setFollows(false);
    virtual.scrollToIndex(hits[next]!, { align: "center" });
  };
  const toFirstError = async () => {
    setFollows(false);
    await earlier(true);
    if (latest.current.start > 0) return;
    const first = latest.current.lines.findIndex((line) => ERROR.test(line));
    if (first >= 0) requestAnimationFrame(() => virtual.scrollToIndex(first, { align: "start" }));
    setError(first < 0 ? new Error("There is no error in this text.") : null);
  };
  const hitSet = useMemo(() => new Set(hits), [hits]);
  return (
    <div className={styles.log}>
      <div className={styles.bar}>
        {choice}
        <span className={styles.grow} />
        <div className={styles.search}>
          <Icon name="search" size={14} />
          <input
            value={query}
            placeholder="search"
            aria-label={`Search in ${name}`}
            onChange={(event) => {
              setQuery(event.target.value);
              setAt(0);
            }}
            onKeyDown={(event) => {
              if (event.key === "Enter") go(event.shiftKey ? at - 1 : query && hits.length ? at + 1 : 0);
              if (event.key === "Escape") setQuery("");
            }}
          />
          {query && (
            <span className="quiet">
              {hits.length ? `${at + 1} of ${count(hits.length)}` : "none"}
            </span>
          )}
        </div>
        <IconButton icon="up" label="Hit before" disabled={!hits.length} onClick={() => go(at - 1)} />
        <IconButton icon="down" label="Next hit" disabled={!hits.length} onClick={() => go(at + 1)} />
        <Button kind="quiet" icon="warning" onClick={() => void toFirstError()}>
          First error
        </Button>
        <Button kind="quiet" aria-pressed={follows} icon="down" onClick={() => setFollows(!follows)}>
          {follows ? "Following" : "Follow"}
        </Button>
      </div>
      {error !== null && <Failure error={error} />}
      <div
        ref={scroller}
        className={styles.lines}
        // What scrolls is reached by keyboard.
        // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label={name}
        onWheel={(event) => event.deltaY < 0 && setFollows(false)}
      >
        {text.start > 0 && (
          <div className={styles.earlier}>
            <Button onClick={() => void earlier()}>Load {size(text.start)} before this</Button>
          </div>
        )}
        <div style={{ height: virtual.getTotalSize(), position: "relative" }}>
          {virtual.getVirtualItems().map((item) => (
            <div
              key={item.index}
              className={styles.line}
              style={{ transform: `translateY(${item.start}px)` }}
              data-hit={hitSet.has(item.index) || undefined}
              data-at={hits[at] === item.index || undefined}
              data-error={ERROR.test(lines[item.index]!) || undefined}
            >
              <LineText line={lines[item.index]!} />
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

function LineText({ line }: { line: string }) {
  const cut = line.length > MOST_CHARACTERS;
  const spans = spansOf(cut ? line.slice(0, MOST_CHARACTERS) : line);
  return (
    <>
      {spans.map((span, at) =>
        span.styles.length ? (
          <span key={at} className={span.styles.map((name) => styles[name]).join(" ")}>
            {span.text}
          </span>
        ) : (
          <span key={at}>{span.text}</span>
        ),
      )}
      <Rest count={line.length - MOST_CHARACTERS} of="characters" at="the file has them" />
    </>
  );
}

const decoder = new TextDecoder();

function appended(text: Text, part: Uint8Array): Text {
  // A character may be cut in two at the end of a part: it is read with the next one.
  const whole = wholeCharacters(part);
  const all = text.rest + decoder.decode(part.subarray(0, whole));
  const lines = all.split("\n");
  const rest = lines.pop() ?? "";
  const kept = text.rest ? text.lines.slice(0, -1) : text.lines;
  const fresh = [...kept, ...lines.map(lastState), ...(rest ? [lastState(rest)] : [])];
  return { lines: fresh, start: text.start, end: text.end + whole, rest };
}

function prepended(text: Text, part: Uint8Array, start: number): Text {
  const lines = decoder.decode(part).split("\n");
  const last = lines.pop() ?? "";
  const [first = "", ...others] = text.lines;
  return { ...text, start, lines: [...lines.map(lastState), lastState(last + first), ...others] };
}

function wholeCharacters(part: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, part.length); back++) {
    const byte = part[part.length - back]!;
    if (byte < 0x80) return part.length;
    if (byte >= 0xc0) {
      const needs = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return back < needs ? part.length - back || part.length : part.length;
    }
  }
  return part.length;
}
