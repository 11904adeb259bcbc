/** All commands of the keyboard and the command palette. */

import { IDEAL_PLACES, THEMES } from "../layout/hash";
import { GROUPINGS, SORTINGS } from "../layout/rows";
import type { Viewer } from "../layout/viewer";
import { ofData, t } from "../model/language";
import { TEXTS } from "./texts";

export interface Command {
  title: string;
  /** As KeyboardEvent.key, with modifiers before it: "Shift+N". */
  keys: string[];
  run: (viewer: Viewer, page: PageActions) => void;
  section: "Move" | "Find" | "Look" | "Rows" | "Page";
}

export const PICTURE_FORMATS = ["svg", "png", "pdf"] as const;
export type PictureFormat = (typeof PICTURE_FORMATS)[number];

/** Actions of the page as a whole. */
export interface PageActions {
  copyLink(): void;
  focusSearch(): void;
  openComparison(): void;
  /** Choose the page of a run to show instead of this one. */
  openRun(): void;
  print(): void;
  /** Save what is in view as a picture. */
  save(format: PictureFormat): void;
  /** Save the page with its notes as a file; null where the page carries no data. */
  savePage: (() => void) | null;
  /** Show the newest data, at the same place. */
  reload(): void;
  /** Show the page in its other language. */
  switchLanguage(): void;
}

const ZOOM = 0.8;
const PAN = 0.15;

function rowOfSelection(viewer: Viewer, act: (row: number) => void): void {
  const span = viewer.selection.selected.peek();
  if (span) act(span.row);
  else viewer.notify(t("select a span first"));
}

function next<T>(all: readonly T[], current: T): T {
  return all[(all.indexOf(current) + 1) % all.length]!;
}

export const COMMANDS: Command[] = [
  { section: "Move", title: t("Zoom in"), keys: ["w", "+", "="], run: (v) => v.camera.zoomBy(ZOOM) },
  { section: "Move", title: t("Zoom out"), keys: ["s", "-"], run: (v) => v.camera.zoomBy(1 / ZOOM) },
  { section: "Move", title: t("Earlier"), keys: ["a"], run: (v) => v.camera.panBy(-PAN) },
  { section: "Move", title: t("Later"), keys: ["d"], run: (v) => v.camera.panBy(PAN) },
  { section: "Move", title: t("Show the whole run"), keys: ["0"], run: (v) => v.camera.fitAll() },
  {
    section: "Move",
    title: t("Fit the selection, the selected span or the step"),
    keys: ["f"],
    run: (v) => v.focusSelection(),
  },
  { section: "Move", title: t("Next step"), keys: ["]", "."], run: (v) => v.camera.moveStep(1) },
  { section: "Move", title: t("Previous step"), keys: ["[", ","], run: (v) => v.camera.moveStep(-1) },
  {
    section: "Move",
    title: t("Follow a running training"),
    keys: ["Shift+F"],
    run: (v) => {
      const { training, isFollowing } = v.live;
      if (training.peek()) isFollowing.value = !isFollowing.peek();
      v.notify(
        isFollowing.peek()
          ? t("following")
          : training.peek()
            ? t("not following")
            : t("no training is running"),
      );
    },
  },
  {
    section: "Move",
    title: t("Undo the last move"),
    keys: ["z", "Backspace"],
    run: (v) => void v.camera.undo(),
  },
  {
    section: "Move",
    title: t("Scroll down"),
    keys: ["PageDown"],
    run: (v) => v.display.setScroll(v.display.scroll.peek() + v.display.size.peek().height * 0.8),
  },
  {
    section: "Move",
    title: t("Scroll up"),
    keys: ["PageUp"],
    run: (v) => v.display.setScroll(v.display.scroll.peek() - v.display.size.peek().height * 0.8),
  },
  { section: "Find", title: t("Search"), keys: ["/", "Ctrl+f"], run: (_, page) => page.focusSearch() },
  { section: "Find", title: t("Next match"), keys: ["n"], run: (v) => void v.nextMatch(1) },
  { section: "Find", title: t("Previous match"), keys: ["Shift+N"], run: (v) => void v.nextMatch(-1) },
  {
    section: "Find",
    title: t("Next span on the row"),
    keys: ["ArrowRight"],
    run: (v) => void v.moveFocus("right"),
  },
  {
    section: "Find",
    title: t("Previous span on the row"),
    keys: ["ArrowLeft"],
    run: (v) => void v.moveFocus("left"),
  },
  {
    section: "Find",
    title: t("Span at this time, one row up"),
    keys: ["ArrowUp"],
    run: (v) => void v.moveFocus("up"),
  },
  {
    section: "Find",
    title: t("Span at this time, one row down"),
    keys: ["ArrowDown"],
    run: (v) => void v.moveFocus("down"),
  },
  {
    section: "Find",
    title: t("Measure the selected span's time, or by dragging"),
    keys: ["m"],
    run: (v) => v.measure(),
  },
  { section: "Look", title: t("Ideal schedule: under, over, off"), keys: ["i"], run: cycleIdeal },
  { section: "Look", title: t("Critical path"), keys: ["c"], run: (v) => v.toggle("critical") },
  { section: "Look", title: t("Dependency arrows"), keys: ["r"], run: (v) => v.toggle("arrows") },
  { section: "Look", title: t("Idle intervals"), keys: ["g"], run: (v) => v.toggle("idle") },
  {
    section: "Look",
    title: t("Clock errors at the edges of spans"),
    keys: ["e"],
    run: (v) => v.toggle("clocks"),
  },
  { section: "Look", title: t("Waits for transfers"), keys: ["x"], run: (v) => v.toggle("waits") },
  { section: "Look", title: t("Transfers"), keys: ["b"], run: (v) => v.toggle("comm") },
  { section: "Look", title: t("Overview of the run"), keys: ["v"], run: (v) => v.toggle("minimap") },
  { section: "Look", title: t("Host spans"), keys: ["o"], run: (v) => v.toggle("host") },
  {
    section: "Look",
    title: t("Light, dark or as the system"),
    keys: [],
    run: (v) => {
      v.display.theme.value = next(THEMES, v.display.theme.peek());
      v.notify(t`theme: ${ofData(v.display.theme.peek())}`);
    },
  },
  {
    section: "Rows",
    title: t("Pin or unpin the row of the selected span"),
    keys: ["p"],
    run: (v) => rowOfSelection(v, (row) => v.display.pin(row)),
  },
  {
    section: "Rows",
    title: t("Hide the row of the selected span"),
    keys: ["h"],
    run: (v) => rowOfSelection(v, (row) => v.display.hide(row)),
  },
  {
    section: "Rows",
    title: t("Show hidden rows again"),
    keys: ["Shift+H"],
    run: (v) => (v.display.rowChoice.value = { ...v.display.rowChoice.peek(), hidden: [] }),
  },
  {
    section: "Rows",
    title: t("Group rows by the next property"),
    keys: ["Shift+G"],
    run: (v) =>
      (v.display.rowChoice.value = {
        ...v.display.rowChoice.peek(),
        group: next(GROUPINGS, v.display.rowChoice.peek().group),
      }),
  },
  {
    section: "Rows",
    title: t("Sort rows by the next property"),
    keys: ["Shift+S"],
    run: (v) =>
      (v.display.rowChoice.value = {
        ...v.display.rowChoice.peek(),
        sort: next(SORTINGS, v.display.rowChoice.peek().sort),
      }),
  },
  {
    section: "Rows",
    title: t("Higher rows"),
    keys: ["Shift+W"],
    run: (v) => v.display.setPitch(v.display.pitch.peek() * 1.25 + 1),
  },
  {
    section: "Rows",
    title: t("Lower rows"),
    keys: ["Shift+X"],
    run: (v) => v.display.setPitch(v.display.pitch.peek() / 1.25),
  },
  {
    section: "Page",
    title: t("Table of the visible spans"),
    keys: ["t"],
    run: (v) => v.toggle("table"),
  },
  {
    section: "Find",
    title: TEXTS.writeNote,
    keys: ["k"],
    run: (v) => {
      v.display.panel.value = "";
      v.display.noteAsked.value += 1;
    },
  },
  { section: "Page", title: t("Copy a link to this view"), keys: ["l"], run: (_, page) => page.copyLink() },
  { section: "Page", title: TEXTS.openRun, keys: [], run: (_, page) => page.openRun() },
  {
    section: "Page",
    title: t("Compare with another run"),
    keys: [],
    run: (_, page) => page.openComparison(),
  },
  ...PICTURE_FORMATS.map(
    (format): Command => ({
      section: "Page",
      title: TEXTS.savePicture(format.toUpperCase()),
      keys: [],
      run: (_, page) => page.save(format),
    }),
  ),
  {
    section: "Page",
    title: t("Language: English; show the page in Chinese"),
    keys: [],
    run: (_, page) => page.switchLanguage(),
  },
  { section: "Page", title: t("Print"), keys: [], run: (_, page) => page.print() },
  {
    section: "Page",
    title: t("Keys and gestures"),
    keys: ["?", "Shift+?"],
    run: (v) => (v.display.dialog.value = "help"),
  },
  {
    section: "Page",
    title: t("All commands"),
    keys: ["Ctrl+k", "Ctrl+Shift+P"],
    run: (v) => (v.display.dialog.value = "palette"),
  },
];

export function commandFor(key: string): Command | undefined {
  return COMMANDS.find((command) => command.keys.includes(key));
}

function cycleIdeal(viewer: Viewer): void {
  if (!viewer.meta.sections.includes("ideal")) {
    viewer.notify(t("this run has no ideal schedule"));
    return;
  }
  const place = next(IDEAL_PLACES, viewer.display.ideal.peek());
  viewer.display.ideal.value = place;
  viewer.notify(
    place === "off"
      ? t("ideal schedule off")
      : place === "under"
        ? t("ideal schedule under the recorded one")
        : t("ideal schedule over the recorded one"),
  );
}
