/** A chart as a picture to keep: PNG, or SVG with lines and texts that stay such. */
import type { Style } from "../state/colors";
import { drawLine, scalesOf, type Line, type Pen } from "./drawing";
import { widthOf, xTicks, yTicks, type Ranges } from "./plot";
import { SvgPen } from "./svg-pen";
import type { AxisKind } from "./ticks";

export interface Picture {
  title: string;
  /** The name of the x axis. */
  xName: string;
  xKind: AxisKind;
  logX: boolean;
  logY: boolean;
  lines: readonly Line[];
  ranges: Ranges;
  colors: { page: string; text: string; grid: string };
  font: string;
}

/** What a picture is drawn with: lines, and the texts around them. */
export type PicturePen = Pen & Pick<CanvasRenderingContext2D, "fillText" | "textAlign" | "font" | "fillRect" | "save" | "restore" | "clip">;

const WIDTH = 720;
const HEIGHT = 400;
const TOP = 30;
const ROW = 17;
const SWATCH = 30;
/** Pixels of a PNG for each of the picture. */
const SHARPNESS = 2;

/** Return the picture as SVG. */
export function svgOf(picture: Picture): string {
  const { width, height } = sizeOf(picture);
  const pen = new SvgPen(width, height);
  draw(pen, picture);
  return pen.text(picture.title);
}

/** Return the picture as PNG. */
export function pngOf(picture: Picture): Promise<Blob> {
  const { width, height } = sizeOf(picture);
  const canvas = document.createElement("canvas");
  canvas.width = SHARPNESS * width;
  canvas.height = SHARPNESS * height;
  const pen = canvas.getContext("2d")!;
  pen.scale(SHARPNESS, SHARPNESS);
  draw(pen, picture);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The picture is too large."))), "image/png"));
}

function named({ lines }: Picture): Line[] {
  const found = lines.filter((line) => !line.isLeft);
  return found.length > 1 ? found : [];
}

/** Return the size of the picture: no name is cut, so a long one makes it wider. */
function sizeOf(picture: Picture): { width: number; height: number; columns: number } {
  const names = named(picture);
  const widest = SWATCH + Math.max(0, ...names.map((line) => widthOf(line.label, `12px ${picture.font}`))) + 16;
  const columns = Math.max(1, Math.floor((WIDTH - 20) / widest));
  return { width: Math.max(WIDTH, Math.ceil(widest) + 20), height: HEIGHT + ROW * Math.ceil(names.length / columns), columns };
}

function draw(pen: PicturePen, picture: Picture): void {
  const { title, xName, lines, ranges, colors, font } = picture;
  const { width, height, columns } = sizeOf(picture);
  const [normal, small] = [`12px ${font}`, `11px ${font}`];
  pen.fillStyle = colors.page;
  pen.fillRect(0, 0, width, height);
  const bottom = HEIGHT - (picture.xKind === "time" ? 64 : 50);
  const ys = yTicks(...ranges.y, bottom - TOP, picture);
  const left = 20 + Math.max(20, ...ys.labels.map((label) => widthOf(label, small)));
  const right = width - 30;
  const xs = xTicks(...ranges.x, right - left, small, picture);
  const scales = scalesOf({ ...ranges, logX: picture.logX, logY: picture.logY }, left, TOP, right - left, bottom - TOP);
  const text = (words: string, x: number, y: number, align: CanvasTextAlign, face: string, color: string) => {
    pen.font = face;
    pen.textAlign = align;
    pen.fillStyle = color;
    pen.fillText(words, x, y);
  };
  pen.lineWidth = 1;
  pen.strokeStyle = colors.grid;
  pen.beginPath();
  for (const value of ys.values) {
    pen.moveTo(left, scales.y(value));
    pen.lineTo(right, scales.y(value));
  }
  for (const value of xs.values) {
    pen.moveTo(scales.x(value), TOP);
    pen.lineTo(scales.x(value), bottom);
  }
  pen.stroke();
  ys.values.forEach((value, at) => text(ys.labels[at]!, left - 6, scales.y(value) + 4, "right", small, colors.text));
  xs.values.forEach((value, at) => xs.labels[at]!.split("\n").forEach((row, place) => text(row, scales.x(value), bottom + 16 + 13 * place, "center", small, colors.text)));
  text(title, left, 18, "left", `600 ${normal}`, colors.text);
  text(xName, right, HEIGHT - 10, "right", small, colors.text);
  pen.save();
  pen.beginPath();
  pen.rect(left, TOP, right - left, bottom - TOP);
  pen.clip();
  for (const line of lines) drawLine(pen, line, scales, 1, false);
  pen.restore();
  const names = named(picture);
  const rows = Math.ceil(names.length / columns);
  names.forEach((line, at) => {
    const x = 10 + ((width - 20) / columns) * Math.floor(at / rows);
    const y = HEIGHT + ROW * (at % rows);
    stroke(pen, line, x, y);
    text(line.label, x + SWATCH, y + 4, "left", normal, colors.text);
  });
}

function stroke(pen: PicturePen, { color, dash }: Pick<Style, "color" | "dash">, x: number, y: number): void {
  pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.setLineDash([...dash]);
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + SWATCH - 6, y);
  pen.stroke();
  pen.setLineDash([]);
}

/** Give a file to whoever looks at the page. */
export function download(name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
