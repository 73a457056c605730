/** Shades by which lines and points show the metric: pale for its worst values, strong for its best. */

export const SHADES = 8;

const ENDS = {
  light: { low: [196, 204, 214], high: [10, 95, 194] },
  dark: { low: [61, 68, 76], high: [111, 178, 255] },
} as const;

export function shades(isDark: boolean): string[] {
  const { low, high } = isDark ? ENDS.dark : ENDS.light;
  return Array.from({ length: SHADES }, (_, index) => {
    const share = index / (SHADES - 1);
    const parts = low.map((value, channel) => Math.round(value + (high[channel]! - value) * share));
    return `rgb(${parts.join(" ")})`;
  });
}

/** Return a canvas context that is as sharp as the screen, emptied. */
export function prepared(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d")!;
  context.scale(ratio, ratio);
  return context;
}
