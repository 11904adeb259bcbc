/** Spans in one pixel line, summed by kind: what a pixel shows where several spans meet in it.
 *
 * The alpha of a pixel is the covered fraction, and its color the mean of its spans. Where spans begin so close to each
 * other that they cannot be distinguished, a mean color would be that of no kind, and sampling pixel by pixel would show
 * slow stripes that no rank has (moire). There, the shares of the kinds are smoothed over five pixels. A row that is
 * high enough shows the kinds of a pixel above each other, each as high as its share. The pixel lines of lower rows take
 * turns in a fixed order, so that neighboring lines have the shares together; the turn depends on the place of the line
 * alone, not on the data.
 */

/** Wider spans can be distinguished. */
export const NARROW_WIDTH = 3;
/** So many narrow spans that begin within nine pixels are a mixture. */
const LEAST_STARTS = 6;
const STARTS_REACH = 4;
/** Weights of a pixel and its neighbors: a box of three pixels, twice. */
const KERNEL = [1, 2, 3, 2, 1];
const KERNEL_SUM = 9;
const REACH = 2;
/** Lower bands have no space for a stack. */
const LEAST_STACK_HEIGHT = 6;
const LEAST_STACK_LINES = 4;
/** Pixel lines of all bands together: more cost time in every frame. */
const MOST_LINES = 320;
/** The turns of eight lines: each half, quarter and eighth of them is spread evenly. */
const TURNS = [0, 4, 2, 6, 1, 5, 3, 7].map((place) => (place + 0.5) / 8);

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

/** Sums of one kind, by pixel; with colors where chunks or changes have shades. */
class KindSums {
  readonly weight: Float32Array;
  readonly channels: [Float32Array, Float32Array, Float32Array];
  /** The color, if all spans of the kind have the same. */
  color = 0;
  /** The first and the last pixel with a span. */
  low = Infinity;
  high = -1;

  constructor(
    readonly code: number,
    width: number,
  ) {
    const row = (): Float32Array => new Float32Array(width);
    this.weight = row();
    this.channels = [row(), row(), row()];
  }

  clear(isVaried: boolean): void {
    const [from, to] = [this.low, this.high + 1];
    this.weight.fill(0, from, to);
    if (isVaried) for (const channel of this.channels) channel.fill(0, from, to);
    this.low = Infinity;
    this.high = -1;
  }

  cover(first: number, last: number): void {
    if (first < this.low) this.low = first;
    if (last > this.high) this.high = last;
  }
}

/** Where the lines of one sublane are. */
export interface Target {
  lines: Uint32Array;
  offset: number;
  division: Division;
  /** Place of the first line in the whole picture, which decides its turn. */
  turn: number;
}

/** Looks of a pixel: nothing in it; the mean of its spans; the inside of a wide span; the shares of kinds. */
const [EMPTY, MEAN, PAINTED, SHARES] = [0, 1, 2, 3] as const;

export class Mixture {
  private width = 0;
  private starts = new Uint16Array(0);
  /** How each pixel is painted. */
  private looks = new Uint8Array(0);
  private readonly byCode: (KindSums | undefined)[] = [];
  private used: KindSums[] = [];
  private isVaried = false;
  private low = Infinity;
  private high = -1;
  private narrow = 0;
  private last: KindSums | null = null;

  /** Forget the spans before; `isVaried`: spans of one kind differ in color. */
  begin(width: number, isVaried: boolean): void {
    if (width !== this.width) {
      this.width = width;
      this.starts = new Uint16Array(width);
      this.looks = new Uint8Array(width);
      this.byCode.length = 0;
    } else if (this.high >= 0) {
      const [from, to] = [this.low, this.high + 1];
      this.starts.fill(0, from, to);
      this.looks.fill(EMPTY, from, to);
      for (const sums of this.used) sums.clear(this.isVaried);
    }
    this.used = [];
    this.last = null;
    this.isVaried = isVaried;
    this.low = Infinity;
    this.high = -1;
    this.narrow = 0;
  }

  /** Add a span from `x` to `end`, in pixels; the inside of a wide one is painted already. */
  add(kind: number, color: number, x: number, end: number, opacity: number): void {
    const first = x | 0;
    if (first >= this.width) return;
    const last = Math.min(end | 0, this.width - 1);
    const { last: before } = this;
    const sums = before?.code === kind ? before : this.sumsOf(kind, color);
    sums.cover(first, last);
    if (end - x < NARROW_WIDTH) {
      this.starts[first]!++;
      this.narrow++;
    }
    // A span of zero length stays visible.
    if (first === last) this.put(sums, first, Math.max(end - x, 0.1) * opacity, color);
    else {
      this.put(sums, first, (first + 1 - x) * opacity, color);
      this.put(sums, last, (end - last) * opacity, color);
      if (last - first > 1) this.putInside(sums, first + 1, last, opacity, color, end - x >= NARROW_WIDTH);
    }
  }

  private put(sums: KindSums, at: number, weight: number, color: number): void {
    sums.weight[at]! += weight;
    this.looks[at] = MEAN;
    if (this.isVaried) addColor(sums, at, weight, color);
  }

  private putInside(
    sums: KindSums,
    from: number,
    to: number,
    weight: number,
    color: number,
    isSolid: boolean,
  ): void {
    for (let at = from; at < to; at++) sums.weight[at]! += weight;
    if (this.isVaried) for (let at = from; at < to; at++) addColor(sums, at, weight, color);
    this.looks.fill(isSolid ? PAINTED : MEAN, from, to);
  }

  private sumsOf(kind: number, color: number): KindSums {
    let sums = this.byCode[kind];
    if (!sums) sums = this.byCode[kind] = new KindSums(kind, this.width);
    if (sums.high < 0) {
      sums.color = color;
      this.used.push(sums);
    }
    this.last = sums;
    return sums;
  }

  /** Paint all pixels that are not inside of a wide span. */
  finish(target: Target): void {
    if (this.used.length === 0) return;
    for (const { low, high } of this.used) {
      if (low < this.low) this.low = low;
      if (high > this.high) this.high = high;
    }
    const { lines, offset, division } = target;
    const isMixed = this.narrow >= LEAST_STARTS;
    if (isMixed) this.findShared();
    for (let at = this.low; at <= this.high; at++)
      if (this.looks[at] === MEAN) this.paintMean(lines, offset, at);
    for (let line = 1; line < division.lines; line++)
      lines.copyWithin(offset + line * this.width, offset, offset + this.width);
    if (isMixed) this.paintShared(target);
  }

  /** Mark the pixels that have too many spans around them to distinguish them. */
  private findShared(): void {
    const { width, starts, looks } = this;
    this.low = Math.max(this.low - REACH, 0);
    this.high = Math.min(this.high + REACH, width - 1);
    let near = 0;
    for (let at = Math.max(this.low - STARTS_REACH, 0); at < this.low + STARTS_REACH && at < width; at++)
      near += starts[at]!;
    for (let at = this.low; at <= this.high; at++) {
      if (at + STARTS_REACH < width) near += starts[at + STARTS_REACH]!;
      if (near >= LEAST_STARTS) looks[at] = SHARES;
      if (at >= STARTS_REACH) near -= starts[at - STARTS_REACH]!;
    }
  }

  /** Paint those pixels, two at once: after smoothing, neighbors differ by little. */
  private paintShared(target: Target): void {
    const { looks, used, high } = this;
    used.sort((a, b) => a.code - b.code);
    const shares = used.map(() => 0);
    for (let at = this.low; at <= high; at++) {
      if (looks[at] !== SHARES) continue;
      const cell = looks[at + 1] === SHARES ? 2 : 1;
      let whole = 0;
      for (let k = 0; k < shares.length; k++) {
        const { weight, low, high: end } = used[k]!;
        const share = at < low - REACH || at > end + REACH ? 0 : smooth(weight, at);
        shares[k] = share;
        whole += share;
      }
      if (whole > 0) this.paintShares(target, at, cell, shares, whole);
      at += cell - 1;
    }
  }

  private paintMean(lines: Uint32Array, offset: number, at: number): void {
    let [cover, red, green, blue] = [0, 0, 0, 0];
    for (const sums of this.used) {
      const weight = sums.weight[at]!;
      if (weight <= 0) continue;
      cover += weight;
      const color = sums.color;
      red += this.isVaried ? sums.channels[0][at]! : weight * (color & 255);
      green += this.isVaried ? sums.channels[1][at]! : weight * ((color >> 8) & 255);
      blue += this.isVaried ? sums.channels[2][at]! : weight * ((color >> 16) & 255);
    }
    if (cover <= 0) return;
    const alpha = Math.min(255, Math.round(cover * 255));
    lines[offset + at] =
      ((alpha << 24) | ((blue / cover) << 16) | (((green / cover) & 255) << 8) | ((red / cover) & 255)) >>> 0;
  }

  /** Paint the lines of one or two pixels by the shares of the kinds. */
  private paintShares(
    { lines, offset, division, turn }: Target,
    at: number,
    cell: number,
    shares: number[],
    whole: number,
  ): void {
    const { used, width } = this;
    const count = division.lines;
    const alpha = this.alpha(whole, at) << 24;
    let kind = 0;
    let sum = shares[0]!;
    for (let line = 0; line < count; line++) {
      if (!division.isStacked) {
        kind = 0;
        sum = shares[0]!;
      }
      const place = (division.isStacked ? line / count : TURNS[(turn + line) & 7]!) * whole;
      while (kind < shares.length - 1 && sum <= place) sum += shares[++kind]!;
      let color = this.colorOf(used[kind]!, at);
      const inside = ((sum - place) * count) / whole;
      // The edge between two kinds lies within the line.
      if (division.isStacked && inside < 1 && kind < shares.length - 1)
        color = blend(color, this.colorOf(used[kind + 1]!, at), inside);
      const pixel = offset + line * width + at;
      lines[pixel] = (alpha | color) >>> 0;
      if (cell > 1) lines[pixel + 1] = lines[pixel]!;
    }
  }

  private alpha(smooth: number, at: number): number {
    // At the edges of the view, fewer pixels count.
    const isEdge = at < REACH || at >= this.width - REACH;
    const cover = smooth / (isEdge ? kernelSum(at, this.width) : KERNEL_SUM);
    return cover >= 1 ? 255 : (cover * 255 + 0.5) | 0;
  }

  private colorOf(sums: KindSums, at: number): number {
    if (!this.isVaried) return sums.color;
    const [red, green, blue] = sums.channels;
    const weight = smooth(sums.weight, at);
    if (weight <= 0) return sums.color;
    return (
      ((smooth(blue, at) / weight) << 16) | ((smooth(green, at) / weight) << 8) | (smooth(red, at) / weight)
    );
  }
}

function addColor({ channels }: KindSums, at: number, weight: number, color: number): void {
  channels[0][at]! += weight * (color & 255);
  channels[1][at]! += weight * ((color >> 8) & 255);
  channels[2][at]! += weight * ((color >> 16) & 255);
}

/** The sum around a pixel, nearer ones counting more. */
function smooth(values: Float32Array, at: number): number {
  if (at >= REACH && at + REACH < values.length)
    return values[at - 2]! + values[at + 2]! + 2 * (values[at - 1]! + values[at + 1]!) + 3 * values[at]!;
  let sum = 0;
  for (let i = 0; i < KERNEL.length; i++) sum += KERNEL[i]! * (values[at + i - REACH] ?? 0);
  return sum;
}

/** What the weights of the pixels around one sum up to, of those in the view. */
function kernelSum(at: number, width: number): number {
  return KERNEL.reduce((sum, weight, i) => {
    const place = at + i - REACH;
    return place >= 0 && place < width ? sum + weight : sum;
  }, 0);
}

/** A color of which `part` is `color`, and the rest is `other`. */
function blend(color: number, other: number, part: number): number {
  const rest = 1 - part;
  const red = (color & 255) * part + (other & 255) * rest;
  const green = ((color >> 8) & 255) * part + ((other >> 8) & 255) * rest;
  const blue = ((color >> 16) & 255) * part + ((other >> 16) & 255) * rest;
  return ((blue & 255) << 16) | ((green & 255) << 8) | (red & 255);
}
