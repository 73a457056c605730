/** Columns of pixels, filled one by one: as calls of a canvas they take most of the time of very many curves. */

/** A color as a pixel takes it. */
export interface Ink {
  red: number;
  green: number;
  blue: number;
  /** The opaque pixel, its bytes in the order of this machine. */
  word: number;
}

const inks = new Map<string, Ink>();

/** Return a color that a canvas spells: "#0067ad". There are few of them, and very many curves. */
export function inkOf(color: string): Ink {
  const known = inks.get(color);
  if (known) return known;
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)) as [number, number, number];
  const ink = { red, green, blue, word: new Uint32Array(Uint8Array.of(red, green, blue, 255).buffer)[0]! };
  inks.set(color, ink);
  return ink;
}

export class Pixels {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  /** Red, green, blue and alpha of each pixel, row by row. */
  readonly bytes: Uint8ClampedArray<ArrayBuffer>;
  private readonly words: Uint32Array;

  constructor(left: number, top: number, width: number, height: number) {
    this.left = Math.floor(left);
    this.top = Math.floor(top);
    this.width = Math.max(1, Math.ceil(left + width) - this.left);
    this.height = Math.max(1, Math.ceil(top + height) - this.top);
    this.bytes = new Uint8ClampedArray(4 * this.width * this.height);
    this.words = new Uint32Array(this.bytes.buffer);
  }

  /** Fill from one column of pixels to another, between any heights. */
  fill(left: number, right: number, top: number, bottom: number, ink: Ink): void {
    const from = Math.max(0, left - this.left);
    const until = Math.min(this.width, right - this.left);
    const low = Math.max(0, top - this.top);
    const high = Math.min(this.height, bottom - this.top);
    if (!(high > low)) return;
    const first = Math.ceil(low);
    const last = Math.floor(high);
    for (let x = from; x < until; x++) {
      for (let y = first; y < last; y++) this.words[y * this.width + x] = ink.word;
      if (first > last) this.cover(x, last, high - low, ink);
      else {
        if (first > low) this.cover(x, first - 1, first - low, ink);
        if (high > last) this.cover(x, last, high - last, ink);
      }
    }
  }

  /** Lay a color over part of a pixel, so that edges are smooth. */
  private cover(x: number, y: number, share: number, { red, green, blue }: Ink): void {
    const at = 4 * (y * this.width + x);
    const below = (this.bytes[at + 3]! / 255) * (1 - share);
    const alpha = share + below;
    this.bytes[at] = (red * share + this.bytes[at]! * below) / alpha;
    this.bytes[at + 1] = (green * share + this.bytes[at + 1]! * below) / alpha;
    this.bytes[at + 2] = (blue * share + this.bytes[at + 2]! * below) / alpha;
    this.bytes[at + 3] = 255 * alpha;
  }

  /** Lay the pixels over what a canvas shows. */
  drawOn(to: CanvasRenderingContext2D): void {
    const sheet = document.createElement("canvas");
    sheet.width = this.width;
    sheet.height = this.height;
    sheet.getContext("2d")!.putImageData(new ImageData(this.bytes, this.width), 0, 0);
    to.drawImage(sheet, this.left, this.top);
  }
}
