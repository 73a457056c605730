/** A pen with the calls of a canvas that writes SVG. */

export class SvgPen {
  strokeStyle = "#000";
  fillStyle = "#000";
  lineWidth = 1;
  lineJoin: CanvasLineJoin = "miter";
  globalAlpha = 1;
  textAlign: CanvasTextAlign = "left";
  font = "12px sans-serif";
  private path: string[] = [];
  private dash: Iterable<number> = [];
  private readonly parts: string[] = [];
  private clips = 0;

  constructor(
    private readonly width: number,
    private readonly height: number,
  ) {}

  beginPath(): void {
    this.path = [];
  }
  moveTo(x: number, y: number): void {
    this.path.push(`M${round(x)} ${round(y)}`);
  }
  lineTo(x: number, y: number): void {
    this.path.push(`${this.path.length ? "L" : "M"}${round(x)} ${round(y)}`);
  }
  rect(x: number, y: number, width: number, height: number): void {
    this.path.push(`M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}z`);
  }
  /** Add a whole circle, as all arcs here are. */
  arc(x: number, y: number, radius: number): void {
    this.path.push(`M${round(x - radius)} ${round(y)}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0`);
  }
  closePath(): void {
    this.path.push("Z");
  }
  setLineDash(dash: Iterable<number>): void {
    this.dash = dash;
  }
  stroke(): void {
    const dash = [...this.dash].join(" ");
    const round = this.lineJoin === "round" ? ' stroke-linejoin="round"' : "";
    this.add(`fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth}"${dash && ` stroke-dasharray="${dash}"`}${round}`, "stroke");
  }
  fill(): void {
    this.add(`fill="${this.fillStyle}"`, "fill");
  }
  fillRect(x: number, y: number, width: number, height: number): void {
    this.beginPath();
    this.rect(x, y, width, height);
    this.fill();
  }
  fillText(text: string, x: number, y: number): void {
    const anchor = { center: "middle", right: "end", end: "end", left: "start", start: "start" }[this.textAlign];
    const found = /^(?:(\d+) )?(\S+) (.+)$/.exec(this.font)!;
    const face = `font-family="${escaped(found[3]!)}" font-size="${found[2]}"${found[1] ? ` font-weight="${found[1]}"` : ""}`;
    this.parts.push(`<text x="${round(x)}" y="${round(y)}" text-anchor="${anchor}" ${face} fill="${this.fillStyle}">${escaped(text)}</text>`);
  }
  save(): void {
    // What is saved is the clip, which `clip` opens as a group.
  }
  clip(): void {
    this.clips += 1;
    const id = `clip${this.clips}`;
    this.parts.push(`<clipPath id="${id}"><path d="${this.path.join("")}"/></clipPath><g clip-path="url(#${id})">`);
  }
  restore(): void {
    this.parts.push("</g>");
  }

  /** Return the whole document. */
  text(title: string): string {
    const { width, height } = this;
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><title>${escaped(title)}</title>${this.parts.join("\n")}</svg>\n`;
  }

  private add(look: string, kind: "stroke" | "fill"): void {
    if (!this.path.length) return;
    const alpha = this.globalAlpha < 1 ? ` ${kind}-opacity="${this.globalAlpha}"` : "";
    this.parts.push(`<path d="${this.path.join("")}" ${look}${alpha}/>`);
  }
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}

/** Return a text as XML has it; characters that XML has no way to write are left out. */
function escaped(text: string): string {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "")
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}
