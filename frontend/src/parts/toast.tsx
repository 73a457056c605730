/** What was done, for a moment at the bottom, with the way back; what was refused stays until it is closed. */
import { useSyncExternalStore } from "react";
import { ApiError } from "../api/client";
import { Button, IconButton } from "./button";
import styles from "./toast.module.css";

interface Toast {
  id: number;
  text: string;
  detail?: string;
  isBad: boolean;
  undo?: () => void;
  /** The word on the button of `undo`. */
  undoWord: string;
}

let toasts: readonly Toast[] = [];
let last = 0;
const watchers = new Set<() => void>();
const SHOWN_MS = 8000;

function set(fresh: readonly Toast[]): void {
  toasts = fresh;
  for (const watcher of watchers) watcher();
}

/** Say that something was done, and how to take it back, or what else to do about it. */
export function say(text: string, undo?: () => void, undoWord = "Undo"): void {
  const id = ++last;
  set([...toasts.slice(-3), { id, text, isBad: false, undoWord, ...(undo && { undo }) }]);
  setTimeout(() => close(id), SHOWN_MS);
}

/** Say that something was refused, with the reason. */
export function complain(error: unknown, what?: string): void {
  const problem = error instanceof ApiError ? error.problem : { what: String(error), fix: "" };
  const id = ++last;
  const detail = [what ? problem.what : "", problem.fix].filter(Boolean).join(" ");
  set([...toasts.slice(-3), { id, text: what ?? problem.what, detail, isBad: true, undoWord: "" }]);
}

function close(id: number): void {
  set(toasts.filter((toast) => toast.id !== id));
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => toasts,
  );
  return (
    <div className={styles.toasts} role="status" aria-live="polite">
      {shown.map((toast) => (
        <div key={toast.id} className={styles.toast} data-bad={toast.isBad || undefined}>
          <div className={styles.text}>
            {toast.text}
            {toast.detail && <div className="quiet">{toast.detail}</div>}
          </div>
          {toast.undo && (
            <Button
              kind="quiet"
              onClick={() => {
                close(toast.id);
                toast.undo?.();
              }}
            >
              {toast.undoWord}
            </Button>
          )}
          <IconButton icon="cross" label="Close" size={14} onClick={() => close(toast.id)} />
        </div>
      ))}
    </div>
  );
}
