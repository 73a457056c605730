/** Colours of a terminal as spans. Everything else that a terminal would obey is left out: it is text here. */

export interface Span {
  text: string;
  /** Names of styles: "red", "bold", ... */
  styles: string[];
}

const COLORS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
// A sequence of colours; else any other sequence (CSI, OSC, a single character), or a control character.
const ESCAPE = /\x1b\[([\d;]*)m|\x1b\[[\d;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?|[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Return the last state of a line that was overwritten by carriage returns, as a terminal shows it. */
export function lastState(line: string): string {
  if (!line.includes("\r")) return line;
  const parts = line.split("\r").filter((part) => part !== "");
  return parts.at(-1) ?? "";
}

/** Return a line as spans. */
export function spansOf(line: string): Span[] {
  const found: Span[] = [];
  let styles = new Set<string>();
  let from = 0;
  const push = (text: string) => {
    if (text) found.push({ text, styles: [...styles] });
  };
  for (const match of line.matchAll(ESCAPE)) {
    push(line.slice(from, match.index));
    from = match.index + match[0].length;
    if (match[1] !== undefined && match[0].endsWith("m")) styles = applied(styles, match[1]);
  }
  push(line.slice(from));
  return found;
}

/** Return a line as plain text. */
export function plain(line: string): string {
  return line.replace(ESCAPE, "");
}

function applied(before: Set<string>, codes: string): Set<string> {
  const found = new Set(before);
  const setColor = (name: string) => {
    for (const color of COLORS) found.delete(color);
    if (name) found.add(name);
  };
  const numbers = codes.split(";").map(Number);
  for (let i = 0; i < numbers.length; i++) {
    const code = numbers[i]!;
    if (code === 0) found.clear();
    else if (code === 1) found.add("bold");
    else if (code === 2) found.add("dim");
    else if (code === 3) found.add("italic");
    else if (code === 4) found.add("underline");
    else if (code === 22) {
      found.delete("bold");
      found.delete("dim");
    } else if (code === 23) found.delete("italic");
    else if (code === 24) found.delete("underline");
    else if (code >= 30 && code <= 37) setColor(COLORS[code - 30]!);
    else if (code >= 90 && code <= 97) setColor(COLORS[code - 90]!);
    else if (code === 39) setColor("");
    // Colours by number are passed over with what belongs to them.
    else if (code === 38 || code === 48) i += numbers[i + 1] === 5 ? 2 : 4;
  }
  return found;
}
