/** Spans in one pixel line, summed by kind: what a pixel shows where several spans meet in it.
 *
 * The alpha of a pixel is the covered fraction, and its color the mean of its spans. Where spans begin so close to each
 * other that they cannot be distinguished, a mean color would be that of no kind, and sampling pixel by pixel would show
 * slow stripes that no rank has (moire). There, the shares of the kinds are smoothed over five pixels. A row that is
 * high enough shows the kinds of a pixel above each other, each as high as its share. The pixel lines of lower rows take
 * turns in a fixed order, so that neighboring lines have the shares together; the turn depends on the place of the line
 * alone, not on the data.
 */

import type { Division } from "./bands";

/** Wider spans can be distinguished. */
export const NARROW_WIDTH = 3;
/** So many narrow spans that begin within nine pixels are a mixture. */
const LEAST_STARTS = 6;
const STARTS_REACH = 4;
/** A span of zero length stays visible. */
const LEAST_WIDTH = 0.1;
/** Weights of a pixel and its neighbors in `smoothed`. */
const KERNEL = [1, 2, 3, 2, 1];
const KERNEL_SUM = 9;
const REACH = 2;
/** The turns of eight lines: each half, quarter and eighth of them is spread evenly. */
const TURNS = [0, 4, 2, 6, 1, 5, 3, 7].map((place) => (place + 0.5) / 8);

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
/** Beyond all pixels; Infinity would make the places of pixels slower floating-point numbers. */
const NONE = 1 << 30;

/** Spans of one track, in columns; `busy` is the covered part of each in 255ths, if they are bins. */
export interface NarrowSpans {
  start: Float64Array;
  duration: Float64Array;
  kind: Uint8Array;
  busy: Int32Array | null;
}

/** How times become pixels: what begins before `right` is drawn, in pixels from `origin` on. */
export interface Pixels {
  origin: number;
  scale: number;
  left: number;
  right: number;
  /** By kind: not 0 where it is not drawn. */
  hidden: Uint8Array;
  /** By kind. */
  colors: Int32Array;
}

/**
 * Kinds have a place each, in the order of their first span, and the sums of all are in one array: their rows follow each
 * other, with empty pixels at both ends for what smoothing reads beyond the edges. Half a million spans and as many
 * pixels are summed and painted in each frame of a run with 512 rows.
 */
export class Mixture {
  private width = 0;
  /** Length of a row of sums. */
  private stride = 0;
  private starts = new Uint16Array(0);
  /** How each pixel is painted. */
  private looks = new Uint8Array(0);
  private weights = new Float32Array(0);
  /** Sums of color times weight; only where spans of one kind differ in color. */
  private reds = new Float32Array(0);
  private greens = new Float32Array(0);
  private blues = new Float32Array(0);
  /** The place of each kind; -1: it has no spans. */
  private readonly placeOf = new Int32Array(256).fill(-1);
  /** The kinds that have spans, and the color of their first one. */
  private readonly codes: number[] = [];
  private readonly colors: number[] = [];
  /** What each kind has of the pixels around one. */
  private shares = new Float64Array(0);
  private isVaried = false;
  /** The first and the last pixel with a span. */
  private low = NONE;
  private high = -1;
  private narrow = 0;

  /** Forget the spans before; `isVaried`: spans of one kind differ in color. */
  begin(width: number, isVaried: boolean): void {
    if (width !== this.width) {
      this.width = width;
      this.stride = width + 2 * REACH;
      this.starts = new Uint16Array(width);
      this.looks = new Uint8Array(width);
      this.weights = new Float32Array(0);
      this.reds = this.greens = this.blues = new Float32Array(0);
    } else if (this.high >= 0) this.clear();
    for (const code of this.codes) this.placeOf[code] = -1;
    this.codes.length = this.colors.length = 0;
    this.isVaried = isVaried;
    this.low = NONE;
    this.high = -1;
    this.narrow = 0;
  }

  private clear(): void {
    const [from, to] = [this.low, this.high + 1];
    this.starts.fill(0, from, to);
    this.looks.fill(EMPTY, from, to);
    const sums = this.isVaried ? [this.weights, this.reds, this.greens, this.blues] : [this.weights];
    for (let place = 0; place < this.codes.length; place++) {
      const row = place * this.stride + REACH;
      for (const each of sums) each.fill(0, row + from, row + to);
    }
  }

  /** Add a span from `x` to `end`, in pixels; the inside of a wide one is painted already. */
  add(kind: number, color: number, x: number, end: number, opacity: number): void {
    const { width, looks, weights: before } = this;
    const first = x | 0;
    if (first >= width) return;
    const last = end >= width ? width - 1 : end | 0;
    const known = this.placeOf[kind]!;
    const place = known >= 0 ? known : this.addKind(kind, color);
    const weights = known >= 0 ? before : this.weights;
    const row = place * this.stride + REACH;
    if (first < this.low) this.low = first;
    if (last > this.high) this.high = last;
    const isWide = end - x >= NARROW_WIDTH;
    if (!isWide) {
      this.starts[first]!++;
      this.narrow++;
    }
    for (let at = first; at <= last; at++) {
      const weight = coverage(x, end, at, first === last) * opacity;
      weights[row + at]! += weight;
      looks[at] = isWide && at > first && at < last ? PAINTED : MEAN;
      if (this.isVaried) this.addColor(row + at, weight, color);
    }
  }

  /**
   * Add the spans of a track from a place on, as long as they are narrow and each kind has one color. Return the place of
   * the first one that is not narrow or not in the view, or `to`. This is `add` without a call for each span.
   */
  addNarrow(spans: NarrowSpans, from: number, to: number, pixels: Pixels): number {
    const { start, duration, kind, busy } = spans;
    const { origin, scale, left, right, hidden, colors } = pixels;
    const { width, stride, starts, looks, placeOf } = this;
    let { weights, low, high, narrow } = this;
    let i = from;
    for (; i < to; i++) {
      const began = start[i]!;
      if (began >= right) break;
      const code = kind[i]!;
      if (hidden[code]) continue;
      const ended = began + duration[i]!;
      if (ended < left) continue;
      const x = began > origin ? (began - origin) * scale : 0;
      const reached = (ended - origin) * scale;
      const end = reached < width ? reached : width;
      const first = x | 0;
      if (end - x >= NARROW_WIDTH || first >= width) break;
      let place = placeOf[code]!;
      if (place < 0) {
        place = this.addKind(code, colors[code]!);
        weights = this.weights;
      }
      const row = place * stride + REACH;
      const opacity = busy === null ? 1 : busy[i]! / 255;
      const last = end >= width ? width - 1 : end | 0;
      if (first < low) low = first;
      if (last > high) high = last;
      starts[first]!++;
      narrow++;
      looks[first] = MEAN;
      if (first === last) {
        weights[row + first]! += (end - x > LEAST_WIDTH ? end - x : LEAST_WIDTH) * opacity;
        continue;
      }
      looks[last] = MEAN;
      weights[row + first]! += (first + 1 - x) * opacity;
      weights[row + last]! += (end - last) * opacity;
      for (let at = first + 1; at < last; at++) {
        looks[at] = MEAN;
        weights[row + at]! += opacity;
      }
    }
    this.low = low;
    this.high = high;
    this.narrow = narrow;
    return i;
  }

  /** Give a kind the next place. */
  private addKind(kind: number, color: number): number {
    const place = this.codes.length;
    const needed = (place + 1) * this.stride;
    const longerBy = (sums: Float32Array<ArrayBuffer>): Float32Array<ArrayBuffer> =>
      sums.length < needed ? longer(sums, needed) : sums;
    this.weights = longerBy(this.weights);
    if (this.isVaried) {
      this.reds = longerBy(this.reds);
      this.greens = longerBy(this.greens);
      this.blues = longerBy(this.blues);
    }
    this.codes.push(kind);
    this.colors.push(color);
    this.placeOf[kind] = place;
    return place;
  }

  /** Paint all pixels that are not inside of a wide span. */
  finish(target: Target): void {
    if (this.high < 0) return;
    const { lines, offset, division } = target;
    const isMixed = this.narrow >= LEAST_STARTS;
    if (isMixed) this.findShared();
    this.paintMeans(lines, offset);
    for (let line = 1; line < division.lines; line++)
      lines.copyWithin(offset + line * this.width, offset, offset + this.width);
    if (isMixed) this.paintShared(target);
  }

  private addColor(at: number, weight: number, color: number): void {
    this.reds[at]! += weight * (color & 255);
    this.greens[at]! += weight * ((color >> 8) & 255);
    this.blues[at]! += weight * ((color >> 16) & 255);
  }

  /** Mark the pixels that have too many spans around them to distinguish them. */
  private findShared(): void {
    const { width, starts, looks } = this;
    const low = Math.max(this.low - REACH, 0);
    const high = Math.min(this.high + REACH, width - 1);
    let near = 0;
    for (let at = Math.max(low - STARTS_REACH, 0); at < low + STARTS_REACH && at < width; at++)
      near += starts[at]!;
    for (let at = low; at <= high; at++) {
      if (at + STARTS_REACH < width) near += starts[at + STARTS_REACH]!;
      if (near >= LEAST_STARTS) looks[at] = SHARES;
      if (at >= STARTS_REACH) near -= starts[at - STARTS_REACH]!;
    }
    this.low = low;
    this.high = high;
  }

  private paintMeans(lines: Uint32Array, offset: number): void {
    const { stride, looks, weights, isVaried, colors, high } = this;
    const kinds = colors.length;
    for (let at = this.low; at <= high; at++) {
      if (looks[at] !== MEAN) continue;
      let [cover, red, green, blue] = [0, 0, 0, 0];
      for (let place = 0; place < kinds; place++) {
        const own = place * stride + REACH + at;
        const weight = weights[own]!;
        if (weight <= 0) continue;
        cover += weight;
        const color = colors[place]!;
        red += isVaried ? this.reds[own]! : weight * (color & 255);
        green += isVaried ? this.greens[own]! : weight * ((color >> 8) & 255);
        blue += isVaried ? this.blues[own]! : weight * ((color >> 16) & 255);
      }
      if (cover <= 0) continue;
      const alpha = Math.min(255, Math.round(cover * 255));
      lines[offset + at] =
        ((alpha << 24) | ((blue / cover) << 16) | (((green / cover) & 255) << 8) | ((red / cover) & 255)) >>>
        0;
    }
  }

  /** Paint the pixels of mixed kinds, two at once: after smoothing, neighbors differ by little. */
  private paintShared(target: Target): void {
    const { looks, high, weights, stride, placeOf } = this;
    // Kinds are above each other in the order of their codes, whichever is the first in a row.
    const places = Int32Array.from(
      [...this.codes].sort((a, b) => a - b),
      (code) => placeOf[code]!,
    );
    const kinds = places.length;
    if (this.shares.length < kinds) this.shares = new Float64Array(kinds);
    const { shares } = this;
    for (let at = this.low; at <= high; at++) {
      if (looks[at] !== SHARES) continue;
      const cell = looks[at + 1] === SHARES ? 2 : 1;
      let whole = 0;
      for (let k = 0; k < kinds; k++) {
        const share = smoothed(weights, places[k]! * stride + REACH + at);
        shares[k] = share;
        whole += share;
      }
      if (whole > 0) {
        // At the edges of the view, fewer pixels count.
        const isEdge = at < REACH || at >= this.width - REACH;
        const cover = (whole / (isEdge ? kernelSum(at, this.width) : KERNEL_SUM)) * 255;
        const alpha = (cover >= 255 ? 255 : (cover + 0.5) | 0) << 24;
        if (target.division.isStacked) this.stackShares(target, at, cell, alpha, places);
        else this.alternateShares(target, at, cell, alpha, places);
      }
      at += cell - 1;
    }
  }

  /** Paint the kinds of one or two pixels in the lines of a row that is low: each line has one of them. */
  private alternateShares(target: Target, at: number, cell: number, alpha: number, places: Int32Array): void {
    const { shares } = this;
    const last = places.length - 1;
    let whole = 0;
    for (let k = 0; k <= last; k++) whole += shares[k]!;
    for (let line = 0; line < target.division.lines; line++) {
      const height = TURNS[(target.turn + line) & 7]! * whole;
      let kind = 0;
      for (let sum = shares[0]!; kind < last && sum <= height; ) sum += shares[++kind]!;
      const pixel = target.offset + line * this.width + at;
      const painted = (alpha | this.colorOf(places[kind]!, at)) >>> 0;
      target.lines[pixel] = painted;
      if (cell > 1) target.lines[pixel + 1] = painted;
    }
  }

  /** Paint the kinds of one or two pixels above each other. */
  private stackShares(target: Target, at: number, cell: number, alpha: number, places: Int32Array): void {
    const { shares } = this;
    const { lines } = target.division;
    const last = places.length - 1;
    let whole = 0;
    for (let k = 0; k <= last; k++) whole += shares[k]!;
    let kind = 0;
    let sum = shares[0]!;
    for (let line = 0; line < lines; line++) {
      const height = (line / lines) * whole;
      while (kind < last && sum <= height) sum += shares[++kind]!;
      let color = this.colorOf(places[kind]!, at);
      // The edge between two kinds lies within the line.
      const inside = ((sum - height) * lines) / whole;
      if (inside < 1 && kind < last) color = blend(color, this.colorOf(places[kind + 1]!, at), inside);
      const pixel = target.offset + line * this.width + at;
      target.lines[pixel] = (alpha | color) >>> 0;
      if (cell > 1) target.lines[pixel + 1] = (alpha | color) >>> 0;
    }
  }

  /** The color of the kind of a place, at a pixel. */
  private colorOf(place: number, at: number): number {
    const color = this.colors[place]!;
    if (!this.isVaried) return color;
    const own = place * this.stride + REACH + at;
    const weight = smoothed(this.weights, own);
    if (weight <= 0) return color;
    return (
      ((smoothed(this.blues, own) / weight) << 16) |
      ((smoothed(this.greens, own) / weight) << 8) |
      (smoothed(this.reds, own) / weight)
    );
  }
}

/** The part of a pixel that a span from `x` to `end` covers. */
function coverage(x: number, end: number, at: number, isWithin: boolean): number {
  if (isWithin) return Math.max(end - x, LEAST_WIDTH);
  return Math.min(end, at + 1) - Math.max(x, at);
}

function longer(values: Float32Array, length: number): Float32Array<ArrayBuffer> {
  const longer = new Float32Array(length);
  longer.set(values);
  return longer;
}

/** The sum around a pixel, nearer ones counting more: a box of three pixels, twice. */
function smoothed(values: Float32Array, at: number): number {
  return values[at - 2]! + values[at + 2]! + 2 * (values[at - 1]! + values[at + 1]!) + 3 * values[at]!;
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
