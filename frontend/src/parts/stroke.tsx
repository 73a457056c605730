/** The line that something is drawn with: what shares a colour has another dash. */

export function Stroke({ color, dash, width = 16 }: { color: string; dash: readonly number[]; width?: number }) {
  return (
    <svg width={width} height="8" style={{ flex: "none", verticalAlign: "middle" }} aria-hidden="true">
      <line x1="0" y1="4" x2={width} y2="4" stroke={color} strokeWidth="2.5" strokeDasharray={dash.join(" ")} />
    </svg>
  );
}
