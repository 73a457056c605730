/** One panel: curves, and the values under the cursor. */
import { memo, useEffect, useLayoutEffect, useMemo, useRef, useState, type CSSProperties, type PointerEvent } from "react";
import { Button, IconButton } from "../parts/button";
import { Dialog } from "../parts/dialog";
import { Menu, MenuCheck, MenuItem, MenuLine } from "../parts/menu";
import { Picker } from "../parts/picker";
import { copyText } from "../parts/copy";
import { Rest, restText, useLimited } from "../parts/more";
import { Stroke } from "../parts/stroke";
import { complain, say } from "../parts/toast";
import type { Axis, PanelOptions, Zoom } from "../state/address";
import { DASHES, type Style } from "../state/colors";
import { count, duration, exact, moment, number } from "../state/format";
import { useShared } from "../state/site";
import { bandOf } from "./band";
import { placesOnLog, valueAt, type Line } from "./drawing";
import { movedPanel, type Layout, type PanelSpec } from "./layout";
import { download, pngOf, svgOf, type Picture } from "./picture";
import { Plot, rangesOf, type Hover, type Mark } from "./plot";
import type { Sheet } from "./sheets";
import type { AxisKind } from "./ticks";
import { useSheet, useSheetVersion } from "./use-sheet";
import styles from "./panels.module.css";

/** A line of the charts: one run, or a group of runs as their mean. */
export interface PanelRun {
  id: string;
  /** Its name, which no other line has, and the same in few characters. */
  label: string;
  short?: string;
  members?: readonly string[];
}

interface PanelProps {
  spec: PanelSpec;
  runs: readonly PanelRun[];
  metrics: readonly string[];
  looks: ReadonlyMap<string, Style>;
  sheet: Sheet;
  axis: Axis;
  zoom: Zoom | null;
  marks?: readonly Mark[] | undefined;
  group: string;
  height: number;
  layout: Layout;
  panels: readonly PanelSpec[];
  options: PanelOptions;
  isLarge: boolean;
  onOptions: (options: PanelOptions) => void;
  onLarge: (isLarge: boolean) => void;
  onZoom: (zoom: Zoom | null) => void;
  onLayout: (layout: Layout) => void;
  onGrab: (event: PointerEvent) => void;
}

const MOST_VALUES = 12;
const MOST_READ = 12;
const MOST_NAMED = 8;
const AS_TABLE = "as a table in the menu";
/** Pixels between the cursor and the values, and between these and the edge of the window. */
const ASIDE = 14;
const EDGE = 8;
const LEFT_BEHIND = "#8a929c";
/** How far from the window a panel is drawn, in pixels. */
const NEAR = 200;

export const Panel = memo(function Panel(props: PanelProps) {
  return props.spec.x ? <PanelOverMetric {...props} /> : <Frame {...props} />;
});

/** A panel with an x axis of its own has a sheet of its own. */
function PanelOverMetric(props: PanelProps) {
  const axis = useMemo(() => ({ ...props.axis, x: props.spec.x!, logX: false }), [props.axis, props.spec.x]);
  const sheet = useSheet(axis, null, props.runs.some((run) => run.members));
  return <Frame {...props} sheet={sheet} axis={axis} zoom={null} />;
}

function Frame(props: PanelProps) {
  const [place, isNear] = useIsNear<HTMLDivElement>();
  const [isTable, setTable] = useState(false);
  const [isRange, setRange] = useState(false);
  const { spec, height, isLarge, onLarge } = props;
  return (
    <figure ref={place} className={styles.panel} aria-label={spec.key}>
      <figcaption className={styles.caption} title={spec.metrics.join(", ")} onPointerDown={props.onGrab}>
        <span className="ellipsis">{spec.title}</span>
      </figcaption>
      <PanelMenu {...props} onTable={() => setTable(true)} onRange={() => setRange(true)} />
      <div className={styles.chart} style={{ minHeight: height + 6 }}>
        {isNear && <Curves {...props} />}
      </div>
      {isLarge && (
        <Dialog title={spec.metrics.join(", ")} size="large" isOpen onClose={() => onLarge(false)}>
          <div className={styles.chart}>
            <Curves {...props} height={Math.max(300, window.innerHeight - 230)} />
          </div>
        </Dialog>
      )}
      {isTable && (
        <Dialog title={spec.metrics.join(", ")} size="medium" isOpen onClose={() => setTable(false)}>
          <CurveTable {...props} />
        </Dialog>
      )}
      {isRange && <RangeDialog title={spec.key} options={props.options} onOptions={props.onOptions} onClose={() => setRange(false)} />}
    </figure>
  );
}

/** Return what the x axis is made of. */
function kindOf({ x }: Axis): AxisKind {
  if (x === "" || x === "step") return "step";
  return x === "time" || x === "elapsed" ? x : "number";
}

/** Ends of the y axis by hand: what is left empty stays as the curves have it. */
function RangeDialog({ title, options, onOptions, onClose }: { title: string; options: PanelOptions; onOptions: (options: PanelOptions) => void; onClose: () => void }) {
  const [low, setLow] = useState(options.low === undefined ? "" : exact(options.low));
  const [high, setHigh] = useState(options.high === undefined ? "" : exact(options.high));
  const [least, most] = [low, high].map((text) => (text.trim() === "" ? undefined : Number(text)));
  const isWrong = [least, most].some((end) => end !== undefined && !Number.isFinite(end)) || (least !== undefined && most !== undefined && least >= most);
  const use = () => {
    if (isWrong) return;
    onOptions({ logY: options.logY, cut: options.cut, low: least, high: most });
    onClose();
  };
  const field = (name: string, value: string, set: (text: string) => void) => (
    <label className={styles.end}>
      {name}
      <input value={value} inputMode="decimal" placeholder="as the curves have it" onChange={(event) => set(event.target.value)} />
    </label>
  );
  return (
    <Dialog
      title={`Range of y: ${title}`}
      size="small"
      isOpen
      onClose={onClose}
      footer={
        <Button kind="primary" disabled={isWrong} onClick={use}>
          Use
        </Button>
      }
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          use();
        }}
      >
        {field("from", low, setLow)}
        {field("to", high, setHigh)}
        {isWrong && <p role="alert">Two numbers, the smaller one first; or nothing.</p>}
      </form>
    </Dialog>
  );
}

function useLines({ spec, runs, looks, sheet }: PanelProps): { lines: readonly Line[]; isKnown: boolean } {
  const version = useSheetVersion(sheet);
  useEffect(() => {
    const unmount = spec.metrics.map((metric) => sheet.mount(metric));
    return () => unmount.forEach((each) => each());
  }, [sheet, spec.metrics]);
  // Before the charts of this frame are made, which takes as long as the answer.
  useLayoutEffect(() => {
    const ids = runs.flatMap((run) => run.members ?? [run.id]);
    for (const metric of spec.metrics) sheet.need(ids, metric);
  }, [sheet, runs, spec.metrics, version]);
  // eslint-disable-next-line react-hooks/exhaustive-deps -- the sheet changes in place, which the version says
  const fresh = useMemo(() => linesOf(sheet, spec.metrics, runs, looks), [sheet, spec.metrics, runs, looks, version]);
  // Until the curves of a new look have come, those of the old one stay.
  const shown = useRef(fresh.lines);
  if (fresh.isComplete || fresh.lines.length) shown.current = fresh.lines;
  return { lines: shown.current, isKnown: fresh.isComplete };
}

function Curves(props: PanelProps) {
  const { spec, runs, group, height, marks, options, sheet, axis, zoom, onZoom } = props;
  const { isDark } = useShared();
  const { lines, isKnown } = useLines(props);
  const [hover, setHover] = useState<Hover | null>(null);
  const [strong, setStrong] = useState<string | null>(null);
  const [outside, setOutside] = useState(0);
  const kind = kindOf(axis);
  const last = lines.reduce((found, line) => Math.max(found, line.curve.last), -Infinity);
  const error = sheet.error;
  return (
    <>
      <Plot
        lines={lines}
        marks={kind === "number" ? undefined : marks}
        zoom={zoom}
        xKind={kind}
        logX={axis.logX}
        logY={options.logY ?? false}
        cutOutliers={options.cut ?? false}
        low={options.low}
        high={options.high}
        group={spec.x ? spec.key : group}
        isDark={isDark}
        strong={strong}
        height={height}
        label={`${spec.key}: ${runs.length} ${runs.length === 1 ? "run" : "runs"}`}
        last={last}
        onZoom={onZoom}
        onOutside={setOutside}
        onHover={(at) => {
          setHover(at);
          setStrong(at ? closest(lines, at.x, at.value) : null);
        }}
      />
      {outside > 0 && <div className={styles.outside}>{count(outside)} outside</div>}
      {hover && <Values at={hover} lines={lines} strong={strong} kind={kind} xName={axis.x} />}
      {error && !lines.length && <p className={styles.note}>{error.problem.what}</p>}
      {!error && isKnown && !lines.length && <p className={styles.note}>no points{axis.x && !["time", "elapsed"].includes(axis.x) ? ` with ${axis.x}` : ""}</p>}
      {options.logY && lines.length > 0 && <LogNote lines={lines} zoom={zoom} />}
      <Legend lines={lines} strong={strong} onStrong={setStrong} />
      <Summary lines={lines} title={spec.key} />
    </>
  );
}

/** What each line is, where there is more than one. Pointing at a name brings its line out. */
function Legend({ lines, strong, onStrong }: { lines: readonly Line[]; strong: string | null; onStrong: (key: string | null) => void }) {
  const named = lines.filter((line) => !line.isLeft);
  const [listed, more] = useLimited(named, MOST_NAMED);
  if (named.length < 2) return null;
  return (
    <ul className={styles.legend} aria-label="Legend" style={{ "--name": `${Math.max(...named.map((line) => line.short.length))}ch` } as CSSProperties}>
      {listed.map(({ key, label, short, color, dash }) => (
        <li key={key} title={label} data-strong={key === strong || undefined} onPointerEnter={() => onStrong(key)} onPointerLeave={() => onStrong(null)}>
          <Stroke color={color} dash={dash} />
          <span className="ellipsis">{short}</span>
        </li>
      ))}
      {more && <li>{more}</li>}
    </ul>
  );
}

/** A logarithmic axis has no place for 0 and below: say so where something is left out. */
function LogNote({ lines, zoom }: { lines: readonly Line[]; zoom: Zoom | null }) {
  const { hidden, left } = useMemo(() => placesOnLog(lines, zoom), [lines, zoom]);
  if (!hidden) return null;
  return left ? <div className={styles.outside}>{count(hidden)} at or below 0</div> : <p className={styles.note}>nothing above 0, which a logarithmic axis could show</p>;
}

/** The curves for whoever cannot see them. */
function Summary({ lines, title }: { lines: readonly Line[]; title: string }) {
  const named = lines.filter((line) => !line.isLeft);
  const shown = named.slice(0, MOST_READ);
  const rest = named.length - shown.length;
  return (
    <table className="sr-only">
      <caption>
        {title}
        {rest > 0 && `, ${restText(rest, AS_TABLE)}`}
      </caption>
      <thead>
        <tr>
          <th>run</th>
          <th>last</th>
          <th>lowest</th>
          <th>highest</th>
        </tr>
      </thead>
      <tbody>
        {shown.map(({ key, label, curve }) => (
          <tr key={key}>
            <td>{label}</td>
            <td>{number(curve.lastValue)}</td>
            <td>{number(curve.least)}</td>
            <td>{number(curve.most)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function CurveTable(props: PanelProps) {
  const { lines } = useLines(props);
  const rows = lines.filter((line) => !line.isLeft);
  const values = ({ curve }: Line) => [curve.lastValue, curve.least, curve.most].map(exact);
  const csv = () => ["run,last,lowest,highest,points", ...rows.map((row) => [quoted(row.label), ...values(row), row.curve.points].join(","))].join("\n");
  return (
    <>
      <table className={styles.table}>
        <thead>
          <tr>
            <th>run</th>
            <th>last</th>
            <th>lowest</th>
            <th>highest</th>
            <th>points</th>
            <th>not finite</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.key}>
              <td>
                <Stroke color={row.color} dash={row.dash} /> {row.label}
              </td>
              {[row.curve.lastValue, row.curve.least, row.curve.most].map((value, at) => (
                <td key={at} title={exact(value)}>
                  {number(value)}
                </td>
              ))}
              <td>{count(row.curve.points)}</td>
              <td>{row.curve.bad ? count(row.curve.bad) : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <IconButton icon="copy" label="Copy as CSV" onClick={() => void copyText(csv()).then((isDone) => isDone && say("Copied as CSV."))} />
    </>
  );
}

function quoted(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return `"${safe.replaceAll('"', '""')}"`;
}

interface PanelMenuProps extends PanelProps {
  onTable: () => void;
  onRange: () => void;
}

function PanelMenu(props: PanelMenuProps) {
  const { spec, layout, panels, metrics, options, onOptions, onLayout, onLarge, onTable, onRange } = props;
  const set = (changes: PanelOptions) => onOptions({ ...options, ...changes });
  const isPinned = layout.pinned.includes(spec.key);
  const at = panels.findIndex((panel) => panel.key === spec.key);
  const isMade = spec.metrics.length > 1 || spec.x !== undefined;
  const others = metrics.filter((metric) => !spec.metrics.includes(metric)).map((value) => ({ value }));
  const merge = (metric: string) => {
    const name = spec.metrics.length > 1 ? spec.title : [...spec.metrics, metric].map((each) => each.split("/").at(-1)).join(" and ");
    onLayout({ ...layout, merged: { ...layout.merged, [name]: [...(layout.merged[name] ?? spec.metrics), metric] } });
  };
  const split = () => {
    if (spec.x !== undefined) onLayout({ ...layout, pairs: layout.pairs.filter((pair) => pair.x !== spec.x || pair.y !== spec.metrics[0]) });
    else onLayout({ ...layout, merged: Object.fromEntries(Object.entries(layout.merged).filter(([name]) => name !== spec.title)) });
  };
  return (
    <div className={styles.tools}>
      {!spec.x && (
        <Picker
          trigger={<IconButton icon="plus" label={`Draw another metric with ${spec.title}`} size={14} />}
          label="Draw with"
          placeholder="another metric in this panel"
          choices={others}
          onChoose={merge}
        />
      )}
      <IconButton icon="expand" label={`Enlarge ${spec.title}`} size={14} onClick={() => onLarge(true)} />
      <Menu align="end" trigger={<IconButton icon="more" label={`Panel ${spec.title}`} size={14} />}>
        <MenuCheck checked={options.logY ?? false} onChange={(logY) => set({ logY })}>
          Logarithmic y axis
        </MenuCheck>
        <MenuCheck checked={options.cut ?? false} onChange={(cut) => set({ cut })}>
          Leave outliers out of the range
        </MenuCheck>
        <MenuItem onSelect={onRange}>Range of y ...</MenuItem>
        <MenuLine />
        <MenuItem
          icon="pin"
          onSelect={() => onLayout({ ...layout, pinned: isPinned ? layout.pinned.filter((each) => each !== spec.key) : [...layout.pinned, spec.key] })}
        >
          {isPinned ? "Let go" : "Pin to the top"}
        </MenuItem>
        <MenuItem icon="left" disabled={at <= 0} onSelect={() => onLayout(movedPanel(layout, panels, spec.key, panels[at - 1]!.key))}>
          Move forward
        </MenuItem>
        <MenuItem icon="right" disabled={at >= panels.length - 1} onSelect={() => onLayout(movedPanel(layout, panels, spec.key, panels[at + 1]!.key))}>
          Move back
        </MenuItem>
        {isMade && (
          <MenuItem icon="cross" onSelect={split}>
            {spec.x === undefined ? "Take apart" : "Remove"}
          </MenuItem>
        )}
        <MenuLine />
        <MenuItem icon="table" onSelect={onTable}>
          As a table
        </MenuItem>
        <SaveItems {...props} />
      </Menu>
    </div>
  );
}

/** Items that keep what the panel shows as a file. */
function SaveItems({ spec, runs, looks, sheet, axis, zoom, options }: PanelProps) {
  const { isDark } = useShared();
  const { lines } = linesOf(sheet, spec.metrics, runs, looks);
  const name = spec.key.replace(/[^A-Za-z0-9._-]+/g, "-");
  const picture = (): Picture => {
    const read = getComputedStyle(document.body);
    const look = { logX: axis.logX, logY: options.logY ?? false };
    return {
      ...look,
      title: spec.key,
      xName: { "": "step", time: "time of day", elapsed: "time since the start" }[axis.x] ?? axis.x,
      xKind: kindOf(axis),
      lines,
      ranges: rangesOf({ lines, zoom, cutOutliers: options.cut ?? false, ...look, low: options.low, high: options.high }),
      colors: isDark ? { page: "#15181c", text: "#c9d1d9", grid: "#2c3238" } : { page: "#ffffff", text: "#3c434a", grid: "#e3e6e9" },
      font: read.fontFamily,
    };
  };
  return (
    <>
      <MenuItem icon="export" disabled={!lines.length} onSelect={() => void pngOf(picture()).then((blob) => download(`${name}.png`, blob), complain)}>
        Save as PNG
      </MenuItem>
      <MenuItem icon="export" disabled={!lines.length} onSelect={() => download(`${name}.svg`, new Blob([svgOf(picture())], { type: "image/svg+xml" }))}>
        Save as SVG
      </MenuItem>
    </>
  );
}

/** Return what a panel draws: a line for each run or group and metric, branches that were left behind below. */
function linesOf(sheet: Sheet, metrics: readonly string[], runs: readonly PanelRun[], looks: ReadonlyMap<string, Style>): { lines: Line[]; isComplete: boolean } {
  const lines: Line[] = [];
  let isComplete = true;
  metrics.forEach((metric, order) => {
    for (const run of runs) {
      const look = looks.get(run.id)!;
      const named = (name: string) => (metrics.length > 1 ? `${name} ${metric}` : name);
      const [label, short] = [named(run.label), named(run.short ?? run.label)];
      const dash = metrics.length > 1 ? DASHES[order % DASHES.length]! : look.dash;
      const base = { id: run.id, label, short, color: look.color, dash };
      if (run.members) {
        const found = run.members.map((id) => sheet.curve(id, metric));
        if (found.some((each) => !each)) isComplete = false;
        const band = bandOf(found.flatMap((each) => each?.filter((curve) => curve.branch === 0) ?? []));
        if (band) {
          lines.push({
            ...base,
            key: `${run.id} ${metric}`,
            label: `${label} (n = ${band.count})`,
            short: `${short} (n = ${band.count})`,
            curve: band.curve,
            smooth: band.curve.smooths,
            isLeft: false,
            band: band.count > 1 ? { lows: band.lows, highs: band.highs } : null,
          });
        }
        continue;
      }
      const found = sheet.curve(run.id, metric);
      if (!found) isComplete = false;
      for (const curve of found ?? []) {
        const isLeft = curve.branch !== 0;
        lines.push({
          ...base,
          key: `${run.id} ${metric} ${curve.branch}`,
          color: isLeft ? LEFT_BEHIND : look.color,
          curve,
          smooth: isLeft ? null : curve.smooths,
          isLeft,
          band: null,
        });
      }
    }
  });
  lines.sort((a, b) => Number(b.isLeft) - Number(a.isLeft));
  return { lines, isComplete };
}

/** Return the line that is nearest to the cursor. */
function closest(lines: readonly Line[], x: number, value: number): string | null {
  let found: string | null = null;
  let least = Infinity;
  for (const line of lines) {
    if (line.isLeft) continue;
    const at = valueAt(line, x);
    if (!at) continue;
    const off = Math.abs(at.value - value);
    if (off < least) [least, found] = [off, line.key];
  }
  return found;
}

interface ValuesProps {
  at: Hover;
  lines: readonly Line[];
  strong: string | null;
  kind: AxisKind;
  xName: string;
}

/** The values of all runs at the cursor, the largest first. */
function Values({ at, lines, strong, kind, xName }: ValuesProps) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (!box.current) return;
    const { left, top } = box.current.offsetParent!.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = box.current;
    box.current.style.left = `${placeBeside(left + at.left, offsetWidth, window.innerWidth) - left}px`;
    box.current.style.top = `${Math.max(EDGE - top, Math.min(EDGE, window.innerHeight - EDGE - offsetHeight - top))}px`;
  });
  const values = lines
    .filter((line) => !line.isLeft)
    .map((line) => ({ line, found: valueAt(line, at.x) }))
    .filter((each): each is { line: Line; found: NonNullable<ReturnType<typeof valueAt>> } => each.found !== null)
    .sort((a, b) => b.found.value - a.found.value);
  if (!values.length) return null;
  const place = Math.max(
    0,
    values.findIndex((each) => each.line.key === strong),
  );
  const from = Math.max(0, Math.min(values.length - MOST_VALUES, place - MOST_VALUES / 2));
  const listed = values.slice(from, from + MOST_VALUES);
  const rest = values.length - listed.length;
  const x = values[place]!.found.x;
  const shown = kind === "time" ? moment(x) : kind === "elapsed" ? duration(x) : `${xName || "step"} ${Number.isInteger(x) ? count(x) : number(x)}`;
  return (
    <div ref={box} className={styles.values} aria-hidden="true">
      <div className={styles.x}>
        {shown}
        {at.mark && <strong> {at.mark}</strong>}
      </div>
      {listed.map(({ line, found }) => (
        <div key={line.key} className={styles.value} data-strong={line.key === strong || undefined}>
          <Stroke color={line.color} dash={line.dash} />
          <span className={styles.label}>{line.short}</span>
          <span className={styles.amount}>
            {number(found.value)}
            {found.low !== found.high && (
              <span className="quiet">
                {" "}
                {number(found.low)} … {number(found.high)}
              </span>
            )}
          </span>
        </div>
      ))}
      <Rest count={rest} at={AS_TABLE} />
    </div>
  );
}

/** Return where a box of some width stands beside a place: at its right, else its left, always within the window. */
export function placeBeside(place: number, width: number, window: number): number {
  const right = place + ASIDE;
  const found = right + width <= window - EDGE ? right : place - ASIDE - width;
  return Math.max(EDGE, Math.min(window - EDGE - width, found));
}

/** Say whether an element is in the window or near it. */
function useIsNear<T extends Element>(): [React.RefObject<T | null>, boolean] {
  const place = useRef<T>(null);
  const [isNear, setNear] = useState(false);
  useLayoutEffect(() => {
    // The observer tells a frame later: too late to ask for the curves that are in the window at first.
    const { top, bottom } = place.current!.getBoundingClientRect();
    setNear(bottom > -NEAR && top < window.innerHeight + NEAR);
    const observer = new IntersectionObserver((entries) => setNear(entries.at(-1)!.isIntersecting), { rootMargin: `${NEAR}px` });
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, []);
  return [place, isNear];
}
