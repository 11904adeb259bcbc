/** The state of the page as the fragment of its address, so that a copied link restores it. */

import { LANGUAGE_OF_LINK } from "../model/language";
import { type Note, noteWord, readNotes } from "./notes";
import { GROUPINGS, type Grouping, type RowChoice, SORTINGS, type Sorting } from "./rows";
import type { View } from "./view";

export type IdealPlace = "off" | "under" | "over";
export const IDEAL_PLACES: IdealPlace[] = ["off", "under", "over"];
export const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export interface Shown {
  view: View | null;
  rows: RowChoice;
  query: string;
  selected: number | null;
  range: { start: number; end: number; rows: number[] } | null;
  hiddenKinds: string[];
  /** Name of the cause whose idle intervals alone are shown; empty: all. */
  cause: string;
  /** Pixels that the rows are scrolled by. */
  scroll: number;
  ideal: IdealPlace;
  flags: string[];
  pitch: number | null;
  theme: Theme;
  panel: string;
  /** Whether the second run of the page is shown, which is the default. */
  isCompared: boolean;
  /** Place of the selected idle interval. */
  interval: number | null;
  /** Null: the link leaves those of the page. */
  notes: readonly Note[] | null;
  /** A step, and the step of the same run that it is compared with. */
  steps: [number, number] | null;
}

export const NOTHING_CHOSEN: Shown = {
  view: null,
  rows: { group: "none", sort: "rank", pinned: [], hidden: [] },
  query: "",
  selected: null,
  range: null,
  hiddenKinds: [],
  cause: "",
  scroll: 0,
  ideal: "off",
  flags: [],
  pitch: null,
  theme: "auto",
  panel: "",
  isCompared: true,
  interval: null,
  notes: null,
  steps: null,
};

/** Return the fragment; defaults are omitted. */
export function toHash(shown: Shown): string {
  const words = new URLSearchParams();
  const put = (name: string, text: string): void => void (text && words.set(name, text));
  if (shown.view) put("t", `${rounded(shown.view.start)}-${rounded(shown.view.end)}`);
  if (shown.rows.group !== "none") put("group", shown.rows.group);
  if (shown.rows.sort !== "rank") put("sort", shown.rows.sort);
  put("pin", shown.rows.pinned.join("."));
  put("hide", shown.rows.hidden.join("."));
  put("q", shown.query);
  if (shown.selected !== null) put("span", String(shown.selected));
  if (shown.range)
    put(
      "range",
      `${rounded(shown.range.start)}-${rounded(shown.range.end)}@${compactRows(shown.range.rows)}`,
    );
  put("without", shown.hiddenKinds.join("."));
  put("idle", shown.cause);
  if (shown.scroll > 0) put("y", rounded(shown.scroll));
  if (shown.ideal !== "off") put("ideal", shown.ideal);
  put("with", shown.flags.join("."));
  if (shown.pitch !== null) put("pitch", String(shown.pitch));
  if (shown.theme !== "auto") put("theme", shown.theme);
  put("panel", shown.panel);
  put("lang", LANGUAGE_OF_LINK);
  if (!shown.isCompared) put("compare", "off");
  if (shown.interval !== null) put("interval", String(shown.interval));
  for (const note of shown.notes ?? []) words.append("note", noteWord(note));
  if (shown.notes?.length === 0) words.append("note", "");
  if (shown.steps) put("steps", shown.steps.join("-"));
  return words.toString();
}

/** Return the state of a fragment; malformed parts are ignored. */
export function fromHash(hash: string): Shown {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const text = (name: string): string => words.get(name) ?? "";
  const times = interval(text("t"));
  const [rangeTimes, rangeRows] = text("range").split("@");
  const range = interval(rangeTimes ?? "");
  return {
    view: times,
    rows: {
      group: oneOf<Grouping>(GROUPINGS, text("group"), "none"),
      sort: oneOf<Sorting>(SORTINGS, text("sort"), "rank"),
      pinned: numbers(text("pin")),
      hidden: numbers(text("hide")),
    },
    query: text("q"),
    selected: /^\d+$/.test(text("span")) ? Number(text("span")) : null,
    range: range && { ...range, rows: readRows(rangeRows ?? "") },
    hiddenKinds: list(text("without")),
    cause: /^[a-z_]*$/.test(text("idle")) ? text("idle") : "",
    scroll: /^\d{1,7}$/.test(text("y")) ? Number(text("y")) : 0,
    ideal: oneOf(IDEAL_PLACES, text("ideal"), "off"),
    flags: list(text("with")),
    pitch: /^\d{1,3}$/.test(text("pitch")) && Number(text("pitch")) > 0 ? Number(text("pitch")) : null,
    theme: oneOf<Theme>(THEMES, text("theme"), "auto"),
    panel: /^[a-z]*$/.test(text("panel")) ? text("panel") : "",
    isCompared: text("compare") !== "off",
    interval: /^\d{1,9}$/.test(text("interval")) ? Number(text("interval")) : null,
    notes: words.has("note") ? readNotes(words.getAll("note")) : null,
    steps: pair(text("steps")),
  };
}

function rounded(ns: number): string {
  return String(Math.round(ns));
}

function interval(text: string): View | null {
  const match = /^(-?\d+)-(-?\d+)$/.exec(text);
  if (!match) return null;
  const [start, end] = [Number(match[1]), Number(match[2])];
  return end > start ? { start, end } : null;
}

function pair(text: string): [number, number] | null {
  const match = /^(\d{1,9})-(\d{1,9})$/.exec(text);
  return match && [Number(match[1]), Number(match[2])];
}

function list(text: string): string[] {
  return text.split(".").filter((word) => /^[a-z_ ]+$/.test(word));
}

function numbers(text: string): number[] {
  return text
    .split(".")
    .filter((word) => /^\d+$/.test(word))
    .map(Number);
}

/** 0-3.7 for rows 0, 1, 2, 3 and 7. */
function compactRows(rows: number[]): string {
  const parts: string[] = [];
  for (let i = 0; i < rows.length; ) {
    let j = i;
    while (rows[j + 1] === rows[j]! + 1) j++;
    parts.push(i === j ? String(rows[i]) : `${rows[i]}-${rows[j]}`);
    i = j + 1;
  }
  return parts.join(".");
}

function readRows(text: string): number[] {
  const rows: number[] = [];
  for (const part of text.split(".")) {
    const match = /^(\d{1,6})(?:-(\d{1,6}))?$/.exec(part);
    if (!match) continue;
    const last = Number(match[2] ?? match[1]);
    for (let row = Number(match[1]); row <= last && rows.length < 100_000; row++) rows.push(row);
  }
  return rows;
}

function oneOf<T extends string>(all: readonly T[], text: string, otherwise: T): T {
  return all.find((one) => one === text) ?? otherwise;
}
