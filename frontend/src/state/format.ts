/** Numbers, times and sizes as people read them: four digits that count, units always. */

/** Return a number with four digits that count, and all those of its whole part below a million. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined) return "";
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size >= 1e6 || size < 1e-3) {
    const [digits, power] = value.toExponential(3).split("e");
    return `${trimmed(digits!)}e${Number(power)}`;
  }
  return size >= 1e4 ? String(Math.round(value)) : trimmed(value.toPrecision(4));
}

function trimmed(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Return a whole number with its thousands apart. */
export function count(value: number): string {
  return value.toLocaleString("en-US");
}

/** Return a cell of a table: numbers short, everything else as it is. */
export function cell(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return number(value);
  if (typeof value === "boolean") return value ? "true" : "false";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Return a number with all its digits, also those of a whole one that is larger than JavaScript prints exactly. */
export function exact(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  return Number.isInteger(value) && Math.abs(value) > Number.MAX_SAFE_INTEGER && Math.abs(value) < 1e21 ? String(BigInt(value)) : String(value);
}

/** Say whether a value is the text of an integer beyond 2^53: so the server sends what a number here would round. */
export function isLongInteger(value: unknown): value is string {
  return typeof value === "string" && /^-?\d{16,}$/.test(value) && !Number.isSafeInteger(Number(value));
}

/** Return the whole value of a cell: for a title, and to copy. */
export function whole(value: unknown): string {
  return typeof value === "number" ? exact(value) : cell(value);
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 0.01) return "0 s";
  if (seconds < 9.95) return `${trimmed(seconds.toPrecision(2))} s`;
  const all = Math.round(seconds);
  if (all < 60) return `${all} s`;
  if (all < 3600) return joined(Math.floor(all / 60), "min", all % 60, "s");
  if (all < 86_400) return joined(Math.floor(all / 3600), "h", Math.floor((all % 3600) / 60), "min");
  return joined(Math.floor(all / 86_400), "d", Math.floor((all % 86_400) / 3600), "h");
}

function joined(many: number, unit: string, rest: number, part: string): string {
  return rest ? `${many} ${unit} ${rest} ${part}` : `${many} ${unit}`;
}

/** Return how long ago a unix time was. */
export function age(then: number, now: number): string {
  const seconds = Math.floor(now - then);
  if (seconds < 1) return "now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds < 60 * 86_400) return `${Math.floor(seconds / 86_400)} d ago`;
  return day(then);
}

const two = (value: number): string => String(value).padStart(2, "0");

export function day(unix: number): string {
  const date = new Date(unix * 1000);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** Return date and time where the reader is. */
export function moment(unix: number): string {
  const date = new Date(unix * 1000);
  return `${day(unix)} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function bytes(size: number): string {
  let amount = size;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (amount < 999.5) return `${Number(amount.toPrecision(3))} ${unit}`;
    if (unit === "TB") return `${amount.toFixed(0)} ${unit}`;
    amount /= 1000;
  }
  return "";
}
