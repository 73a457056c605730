/** What a list leaves out is told in one way: how many, and what shows them. */
import { useState, type ReactNode } from "react";
import { count } from "../state/format";
import { Button } from "./button";

/** Return the first items of a list, or the last, and a button that shows the others; nothing where there are none. */
export function useLimited<T>(items: readonly T[], most: number, isFromEnd = false): [readonly T[], ReactNode] {
  const [isWhole, setWhole] = useState(false);
  const rest = items.length - most;
  if (rest <= 0) return [items, null];
  const shown = isWhole ? items : isFromEnd ? items.slice(-most) : items.slice(0, most);
  const more = (
    <Button kind="quiet" aria-expanded={isWhole} onClick={() => setWhole(!isWhole)}>
      {isWhole ? "fewer" : `${count(rest)} more`}
    </Button>
  );
  return [shown, more];
}

/** How many are left out where something else shows them, which `at` names. */
export function Rest({ count: rest, of = "", at }: { count: number; of?: string; at: string }) {
  if (rest <= 0) return null;
  return <span className="quiet">{restText(rest, at, of)}</span>;
}

export function restText(rest: number, at: string, of = ""): string {
  return `and ${count(rest)} more${of && ` ${of}`}: ${at}`;
}
