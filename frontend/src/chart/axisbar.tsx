/** The bar above panels: which are shown, how smooth, over what. */
import { useEffect, useRef, useState } from "react";
import { Button, IconButton } from "../parts/button";
import { Icon } from "../parts/icons";
import { Menu, MenuCheck, MenuChoice, MenuLine } from "../parts/menu";
import { Picker } from "../parts/picker";
import { showZoom, type Axis, type Zoom } from "../state/address";
import styles from "./axisbar.module.css";

interface AxisBarProps {
  axis: Axis;
  zoom: Zoom | null;
  filter: string;
  metrics: readonly string[];
  onAxis: (changes: { x?: string; logx?: boolean; smooth?: number }) => void;
  onZoom: (zoom: Zoom | null) => void;
  onFilter: (text: string) => void;
  onPair: (pair: { x: string; y: string }) => void;
  /** The key that lines are coloured by, and those that tell them apart, where there are several. */
  colors?: { by: string; keys: readonly string[]; onChange: (by: string) => void };
}

const AXES = [
  { value: "", label: "step" },
  { value: "time", label: "time of day" },
  { value: "elapsed", label: "time since the start" },
  { value: "epoch", label: "epoch" },
];

const BY_NAME = "each name its own";

export function AxisBar({ axis, zoom, filter, metrics, onAxis, onZoom, onFilter, onPair, colors }: AxisBarProps) {
  const [text, setText] = useState(filter);
  const [first, setFirst] = useState<string | null>(null);
  useEffect(() => setText(filter), [filter]);
  const known = AXES.some((each) => each.value === axis.x);
  return (
    <div className={styles.bar} role="toolbar" aria-label="Charts">
      <div className={styles.filter}>
        <Icon name="search" size={14} />
        <input
          value={text}
          placeholder="filter panels"
          aria-label="Filter panels"
          spellCheck={false}
          onChange={(event) => {
            setText(event.target.value);
            onFilter(event.target.value);
          }}
        />
      </div>
      <Smooth value={axis.smooth} onChange={(smooth) => onAxis({ smooth })} />
      <Menu
        trigger={
          <Button kind="quiet" className={styles.tool}>
            <span className="quiet">x</span> <span className="ellipsis">{AXES.find((each) => each.value === axis.x)?.label ?? axis.x}</span> <Icon name="chevron" size={12} />
          </Button>
        }
      >
        <MenuChoice value={axis.x} choices={known ? AXES : [...AXES, { value: axis.x, label: axis.x }]} onChange={(x) => onAxis({ x })} />
        <MenuLine />
        <MenuCheck checked={axis.logX} onChange={(logx) => onAxis({ logx })}>
          Logarithmic
        </MenuCheck>
      </Menu>
      {colors && (colors.keys.length > 0 || colors.by) && (
        <Picker
          trigger={
            <Button kind="quiet" className={styles.tool}>
              <span className="quiet">colour</span> <span className="ellipsis">{colors.by ? colors.by.split(".").at(-1) : "name"}</span> <Icon name="chevron" size={12} />
            </Button>
          }
          label="Colour by"
          placeholder="a key that differs"
          choices={[{ value: BY_NAME }, ...colors.keys.map((value) => ({ value }))]}
          chosen={new Set([colors.by || BY_NAME])}
          onChoose={(value) => colors.onChange(value === BY_NAME ? "" : value)}
        />
      )}
      <Picker
        trigger={<IconButton icon="plus" label="Draw one metric against another" />}
        label={first === null ? "The metric that goes up" : `${first} against ...`}
        placeholder={first === null ? "the metric that goes up" : `${first} against ...`}
        choices={metrics.map((value) => ({ value }))}
        stays={first === null}
        onChoose={(value) => {
          if (first === null) setFirst(value);
          else {
            onPair({ y: first, x: value });
            setFirst(null);
          }
        }}
      />
      {zoom && (
        <Button kind="quiet" icon="cross" onClick={() => onZoom(null)} title="Or a double click on a chart">
          {showZoom(zoom).replace(":", " to ")}
        </Button>
      )}
    </div>
  );
}

/** How strongly curves are smoothed: drawn at once, in the address once the hand rests. */
function Smooth({ value, onChange }: { value: number; onChange: (value: number) => void }) {
  const [at, setAt] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setAt(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  // Most of what matters lies close to 1: the hand moves along the root.
  const place = 1 - Math.sqrt(1 - Math.min(at, 0.999));
  return (
    <label className={styles.smooth}>
      <span className="quiet">smooth</span>
      <input
        type="range"
        min={0}
        max={1}
        step={0.01}
        value={place}
        aria-valuetext={at ? String(at) : "off"}
        onChange={(event) => {
          const hand = Number(event.target.value);
          const fresh = Math.min(0.999, Math.round((1 - (1 - hand) ** 2) * 1000) / 1000);
          setAt(fresh);
          clearTimeout(timer.current);
          timer.current = setTimeout(() => onChange(fresh), 60);
        }}
      />
      <span className={styles.value}>{at ? at : "off"}</span>
    </label>
  );
}
