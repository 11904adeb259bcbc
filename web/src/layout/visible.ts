/** Whether a match is drawn, and how to draw it: layers, kinds and rows that are switched off. */

import { t } from "../model/language";
import { COMM, COMPUTE, HOST } from "../model/meta";
import type { Found } from "../model/source";
import type { Display } from "./display";
import { type Flag, LAYER_NAMES } from "./hit";

/** What of a span decides whether it is drawn. */
interface Drawable {
  row: number;
  layer: number;
  kind: number;
}

const FLAG_OF_LAYER: (Flag | null)[] = [];
FLAG_OF_LAYER[COMPUTE] = null;
FLAG_OF_LAYER[COMM] = "comm";
FLAG_OF_LAYER[HOST] = "host";

/** How many matches are in layers or of kinds that are not shown. */
export function hiddenCount(
  found: Found,
  flags: ReadonlySet<Flag>,
  hiddenKinds: ReadonlySet<number>,
): number {
  return found.groups.reduce((sum, { layer, kind, count }) => {
    const flag = FLAG_OF_LAYER[layer] ?? null;
    return hiddenKinds.has(kind) || (flag && !flags.has(flag)) ? sum + count : sum;
  }, 0);
}

/** Switch on what hides a span; return a sentence about it, empty if it was drawn already. */
export function makeVisible(display: Display, { row, layer, kind }: Drawable, kindName: string): string {
  const shown: string[] = [];
  const flag = FLAG_OF_LAYER[layer] ?? null;
  if (flag && !display.flags.peek().has(flag)) {
    display.toggle(flag);
    shown.push(LAYER_NAMES[flag]);
  }
  if (display.hiddenKinds.peek().has(kind)) {
    display.toggleKind(kind);
    shown.push(t`spans of kind ${kindName}`);
  }
  const choice = display.rowChoice.peek();
  if (choice.hidden.includes(row)) {
    display.rowChoice.value = { ...choice, hidden: choice.hidden.filter((one) => one !== row) };
    shown.push(t("a hidden row"));
  }
  return shown.length ? t`now shown, because a match is there: ${shown.join(", ")}` : "";
}
