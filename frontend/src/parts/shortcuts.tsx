/** Keys that do something, wherever the focus is but in a field; `?` lists those that hold on this page. */
import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { Dialog } from "./dialog";
import styles from "./shortcuts.module.css";

interface Shortcut {
  /** As typed: "j", "g r", "ctrl+k", "?", "escape". */
  keys: string;
  text: string;
  run: (event: KeyboardEvent) => void;
}

let shortcuts: readonly Shortcut[] = [];
const watchers = new Set<() => void>();

/** Let keys do something as long as the caller is on the page. The newest wins. */
export function useShortcuts(given: readonly Shortcut[]): void {
  const latest = useRef(given);
  useEffect(() => {
    latest.current = given;
  });
  const key = given.map((each) => `${each.keys}:${each.text}`).join("|");
  useEffect(() => {
    const own = latest.current.map((each) => ({
      ...each,
      run: (event: KeyboardEvent) => latest.current.find((now) => now.keys === each.keys)?.run(event),
    }));
    shortcuts = [...own, ...shortcuts];
    for (const watcher of watchers) watcher();
    return () => {
      shortcuts = shortcuts.filter((each) => !own.includes(each));
      for (const watcher of watchers) watcher();
    };
  }, [key]);
}

let begun = "";
let timer: ReturnType<typeof setTimeout> | undefined;

function isField(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

function nameOf(event: KeyboardEvent): string {
  const key = event.key.length === 1 ? event.key : event.key.toLowerCase();
  return `${event.ctrlKey || event.metaKey ? "ctrl+" : ""}${event.altKey ? "alt+" : ""}${key}`;
}

function onKeyDown(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.key === "Shift" || event.key === "Control") return;
  const name = nameOf(event);
  const isInside = isField(event.target);
  const isOverlaid = document.querySelector("[role=dialog][data-state=open], [role=menu][data-state=open]") !== null;
  if ((isInside || isOverlaid) && name !== "ctrl+k") return;
  const whole = begun ? `${begun} ${name}` : name;
  clearTimeout(timer);
  begun = "";
  const found = shortcuts.find((each) => each.keys === whole) ?? shortcuts.find((each) => each.keys === name);
  if (found) {
    // Enter and space on a button press it.
    if ((name === "enter" || name === " ") && event.target instanceof HTMLElement && event.target.closest("button, a")) return;
    event.preventDefault();
    found.run(event);
  } else if (shortcuts.some((each) => each.keys.startsWith(`${name} `))) {
    begun = name;
    timer = setTimeout(() => (begun = ""), 1200);
  }
}

/** Listens for all of them, and shows the list. */
export function Shortcuts() {
  const [isOpen, setOpen] = useState(false);
  const all = useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => shortcuts,
  );
  useEffect(() => {
    window.addEventListener("keydown", onKeyDown);
    return () => window.removeEventListener("keydown", onKeyDown);
  }, []);
  useShortcuts([{ keys: "?", text: "This list", run: () => setOpen(true) }]);
  useEffect(() => {
    const open = () => setOpen(true);
    window.addEventListener("assay:shortcuts", open);
    return () => window.removeEventListener("assay:shortcuts", open);
  }, []);
  const listed = [...new Map([...all].reverse().map((each) => [each.keys, each])).values()];
  return (
    <Dialog title="Keys" isOpen={isOpen} onClose={() => setOpen(false)}>
      <dl className={styles.list}>
        {listed.map((each) => (
          <div key={each.keys} className={styles.line}>
            <dt>
              {each.keys.split(" ").map((part) => (
                <kbd key={part}>{part === "escape" ? "esc" : part}</kbd>
              ))}
            </dt>
            <dd>{each.text}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

export function showShortcuts(): void {
  window.dispatchEvent(new Event("assay:shortcuts"));
}
