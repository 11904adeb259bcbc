/** Marks of a time axis at 1, 2 or 5 times a power of ten, in one unit. */

import { COST_UNIT_NS, type TimeUnit, UNITS } from "../model/time";
import { length, type View } from "./view";

export interface Tick {
  time: number;
  text: string;
}

export interface Ticks {
  unit: string;
  ticks: Tick[];
}

/** Return at most `most` marks of what is in view; their texts count from `origin`. */
export function axisTicks(view: View, origin: number, most: number, unit: TimeUnit): Ticks {
  const step = niceStep(length(view) / Math.max(most, 1));
  const far = Math.max(Math.abs(view.start - origin), Math.abs(view.end - origin), step);
  const [name, unitNs] = unit === "cost" ? ["", COST_UNIT_NS] : unitFor(far, step);
  const decimals = Math.max(0, Math.ceil(Math.log10(unitNs / step) - 1e-9));
  const ticks: Tick[] = [];
  const first = Math.ceil((view.start - origin) / step);
  for (let i = first; origin + i * step <= view.end && ticks.length < 1000; i++)
    ticks.push({ time: origin + i * step, text: ((i * step) / unitNs).toFixed(Math.min(decimals, 9)) });
  return { unit: name, ticks };
}

/** The largest unit in which the marks need at most six digits behind the point. */
function unitFor(far: number, step: number): [string, number] {
  const large = UNITS.find(([, ns]) => far >= ns) ?? UNITS[3]!;
  return step * 1e6 >= large[1] ? large : (UNITS.find(([, ns]) => step * 1e3 >= ns) ?? UNITS[3]!);
}

function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  const nice = [1, 2, 5, 10].find((one) => one * power >= least) ?? 10;
  return Math.max(1, nice * power);
}
