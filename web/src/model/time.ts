/** Durations as text: the unit follows the size, as in vocabulary/durations.py. */

import { t } from "./language";

export const UNITS: [string, number][] = [
  ["s", 1e9],
  ["ms", 1e6],
  ["µs", 1e3],
  ["ns", 1],
];

export const COST_UNIT_NS = 1e6;

export type TimeUnit = "ns" | "cost";

/** Four significant digits, or whole nanoseconds. */
export function durationText(ns: number, unit: TimeUnit = "ns"): string {
  if (unit === "cost") return trimmed((ns / COST_UNIT_NS).toFixed(6));
  if (ns < 0) return `−${durationText(-ns)}`;
  const size = Math.abs(ns);
  const [name, unitNs] = UNITS.find(([, of]) => size >= of) ?? UNITS[3]!;
  const value = ns / unitNs;
  const digits = String(Math.trunc(Math.abs(value))).length;
  return `${fixed(value, unitNs > 1 ? Math.max(0, 4 - digits) : 0)} ${name}`;
}

/** More digits than a double has behind the point at these sizes, so that they show what it is exactly. */
const EXACT_DIGITS = 40;

/** As `toFixed`, but of two equally near numbers the even one, as Python rounds: the terminal shows the same digits. */
export function fixed(value: number, decimals: number): string {
  const text = value.toFixed(decimals);
  const exact = value.toFixed(decimals + EXACT_DIGITS);
  const rest = exact.slice(-EXACT_DIGITS);
  if (rest[0] !== "5" || Number(rest.slice(1)) !== 0) return text;
  const below = exact.slice(0, -EXACT_DIGITS).replace(/\.$/, "");
  return Number(below.at(-1)) % 2 === 0 ? below : text;
}

/** As short as fits into a block: two or three digits. */
export function shortDuration(ns: number, unit: TimeUnit): string {
  if (unit === "cost") return trimmed((ns / COST_UNIT_NS).toFixed(2));
  const [name, unitNs] = UNITS.find(([, of]) => ns >= of) ?? UNITS[3]!;
  const value = ns / unitNs;
  return `${value >= 10 || unitNs === 1 ? Math.round(value) : value.toFixed(1)} ${name}`;
}

export function percentText(fraction: number): string {
  if (fraction > 10) return multipleText(fraction);
  const text = fixed(100 * fraction, 1);
  // A small negative part is no "-0.0".
  return `${text === "-0.0" ? "0.0" : text.replace("-", "−")} %`;
}

/** A relative change: in percent, or above ten times as a multiple, as vocabulary/ratios.py writes it. */
export function changeText(change: number): string {
  if (change + 1 > 10) return multipleText(change + 1);
  return `${change > 0 ? "+" : ""}${percentText(change)}`;
}

/** A relative change in whole percent, for the little space of a block. */
export function shortChange(change: number): string {
  if (change + 1 > 10) return multipleText(change + 1);
  const text = fixed(100 * change, 0).replace("-", "−");
  return text === "0" || text === "−0" ? "0 %" : `${change > 0 ? "+" : ""}${text} %`;
}

function multipleText(ratio: number): string {
  return ratio > 1000 ? t("over 1000x") : `${fixed(ratio, 0)}x`;
}

export function countText(count: number): string {
  return count.toLocaleString("en-US");
}

/** A moment on the run's clock, exact: the base may be ns since 1970. */
export function momentText(baseNs: string, ns: number): string {
  return (BigInt(baseNs) + BigInt(Math.round(ns))).toString();
}

/** ns of a text such as 5ms or 1.5 us; null if it is none. Without a unit: ns. */
export function parseDuration(text: string): number | null {
  const match = /^(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|µs|ns)?$/.exec(text.trim());
  if (!match) return null;
  const unit = (match[2] ?? "ns").replace("us", "µs");
  return Number(match[1]) * (UNITS.find(([name]) => name === unit)?.[1] ?? 1);
}

function trimmed(text: string): string {
  return text.replace(/\.?0+$/, "");
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

/** A size in bytes with three digits and a unit, as the terminal prints it. */
export function bytesText(bytes: number): string {
  let unit = 0;
  while (bytes >= 1024 && unit < SIZES.length - 1) {
    bytes /= 1024;
    unit++;
  }
  return `${unit ? fixed(bytes, bytes < 10 ? 2 : bytes < 100 ? 1 : 0) : bytes} ${SIZES[unit]}`;
}
