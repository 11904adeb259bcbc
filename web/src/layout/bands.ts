/** How the height of a row is divided among its lanes (actions, kernels, another run, transfers and host), and those
 * into pixel lines. */

export interface Bands {
  mainHeight: number;
  /** Tops are relative to the top of the row; a height of 0: there is no such lane. */
  kernelTop: number;
  kernelHeight: number;
  ghostTop: number;
  ghostHeight: number;
  thinTop: number;
  thinHeight: number;
}

export interface Lanes {
  thin: boolean;
  ghost: boolean;
  kernels: boolean;
}

const THIN_FRACTION = 0.24;
const GHOST_FRACTION = 0.36;
const KERNEL_FRACTION = 0.38;
/** Lower rows have the lane of actions alone. */
const LEAST_DIVIDED_HEIGHT = 8;
const LEAST_KERNEL_HEIGHT = 16;

/** Lower bands have no space for a stack. */
const LEAST_STACK_HEIGHT = 6;
const LEAST_STACK_LINES = 4;
/** Pixel lines of all bands together: more cost time in every frame. */
const MOST_LINES = 320;

/** Return the lanes of a row of a height: the lane of kernels is right below that of the actions. */
export function divideRow(height: number, lanes: Lanes): Bands {
  const isDivided = height >= LEAST_DIVIDED_HEIGHT;
  const thin = lanes.thin && isDivided ? height * THIN_FRACTION : 0;
  const ghost = lanes.ghost && isDivided ? height * GHOST_FRACTION : 0;
  const kernels = lanes.kernels && height >= LEAST_KERNEL_HEIGHT ? height * KERNEL_FRACTION : 0;
  const below = (part: number): number => (part ? part + 1 : 0);
  return {
    mainHeight: height - below(thin) - below(ghost) - below(kernels),
    kernelTop: height - kernels - below(thin) - below(ghost),
    kernelHeight: kernels,
    ghostTop: height - ghost - below(thin),
    ghostHeight: ghost,
    thinTop: height - thin,
    thinHeight: thin,
  };
}

/** Whether kernels can be seen: a typical one is at least a pixel wide. */
export function showsKernels(typical: number, nsPerPixel: number): boolean {
  return typical > 0 && nsPerPixel <= typical;
}

/** How the height of a sublane is divided into pixel lines. */
export interface Division {
  lines: number;
  isStacked: boolean;
}

/** Return the lines of each sublane of a band: `height` in pixels of the screen, `sublanes` in all bands together. */
export function divideBand(height: number, depth: number, sublanes: number): Division {
  const each = Math.max(1, Math.floor(height / depth));
  if (each < LEAST_STACK_HEIGHT) return { lines: each, isStacked: false };
  return {
    lines: Math.min(each, Math.max(LEAST_STACK_LINES, Math.floor(MOST_LINES / sublanes))),
    isStacked: true,
  };
}

/** The pixel lines of a band, whose place and height are in units of the pen. */
export interface Lines {
  top: number;
  height: number;
  /** The first of its pixel lines, and how they are divided. */
  line: number;
  division: Division;
}

interface Strip {
  line: number;
  count: number;
  top: number;
  height: number;
}

/**
 * The pixel lines that are drawn at once, in pixels of the screen: those of a band, or of all bands that touch each other
 * and have a line for each of their pixels, because 512 pictures of one line each take longer than one.
 */
export function stripsOf(bands: Lines[], depth: number, ratio: number): Strip[] {
  const strips: Strip[] = [];
  for (const band of bands) {
    const top = Math.round(band.top * ratio);
    const height = Math.max(Math.round((band.top + band.height) * ratio) - top, 1);
    const count = height >= depth ? depth * band.division.lines : 1;
    const last = strips.at(-1);
    const continues = last && last.top + last.height === top && last.line + last.count === band.line;
    if (continues && last.count === last.height && count === height) {
      last.count += count;
      last.height += height;
    } else strips.push({ line: band.line, count, top, height });
  }
  return strips;
}
