/** Colors as numbers: shades of chunks, readable ink. The formulas are those of vocabulary/palette.py. */

import type { Kind, Meta, Wait } from "../model/meta";
import type { Palette } from "./bins";

const LIGHTEST_CHUNK_FRACTION = 0.55;
const UNKNOWN_WAIT: Wait = { name: "unknown", label: "unknown", color: "#8a8f98", texture: "rising" };

/** Label, color and hatch of a wait; one that the run does not declare looks like `unknown`. */
export function waitNamed(meta: Meta, name: string): Wait {
  return meta.waits.find((one) => one.name === name) ?? { ...UNKNOWN_WAIT, name, label: name };
}

export function channels(color: string): [number, number, number] {
  const value = parseInt(color.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** Dark for the first of a rank's chunks, light for the last. */
export function chunkColor(color: string, chunk: number, chunkCount: number): string {
  const place = chunkCount > 1 ? Math.min(Math.max(chunk / (chunkCount - 1), 0), 1) : 0;
  return mix(color, "#ffffff", LIGHTEST_CHUNK_FRACTION * place);
}

export function mix(color: string, other: string, fraction: number): string {
  const to = channels(other);
  const mixed = channels(color).map((value, i) => Math.round(value + (to[i]! - value) * fraction));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

export function contrast(one: string, other: string): number {
  const [darker, lighter] = [luminance(one), luminance(other)].sort((a, b) => a - b) as [number, number];
  return (lighter + 0.05) / (darker + 0.05);
}

export function textColor(background: string): string {
  return contrast("#1a1a1a", background) >= contrast("#ffffff", background) ? "#1a1a1a" : "#ffffff";
}

/** Colors for pixels, from the first chunk to the last. */
export function pixelPalette(kinds: Kind[], chunkCount: number): Palette {
  const shades = Math.max(chunkCount, 1);
  const colors = new Int32Array(256 * shades);
  for (const kind of kinds)
    for (let chunk = 0; chunk < shades; chunk++) {
      const [red, green, blue] = channels(chunkColor(kind.color, chunk, shades));
      colors[kind.code * shades + chunk] = (blue << 16) | (green << 8) | red;
    }
  return { shades, colors };
}

function luminance(color: string): number {
  const [red, green, blue] = channels(color).map((value) => linear(value / 255)) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function linear(value: number): number {
  return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
}
