import { beforeEach, expect, it } from "vitest";

import { restore, shownOf } from "../../src/layout/shown";
import { length } from "../../src/layout/view";
import { Viewer } from "../../src/layout/viewer";
import { hiddenCount } from "../../src/layout/visible";
import { sourceOf } from "../blob";

const TEXT = `
  F0 F1 .  .  .  B0 - B1 -
  .  F0 F1 B0 -  B1 - .  .`;
let viewer: Viewer;
let time = 0;

beforeEach(() => {
  const { meta, source } = sourceOf(TEXT);
  time = 0;
  viewer = new Viewer(meta, source, () => (time += 1000));
});

const label = (): string => {
  const span = viewer.selection.selected.value!;
  return `${viewer.meta.kinds.find((kind) => kind.code === span.kind)!.letter}${span.stage}.${span.microbatch}`;
};

it("undoes moves one by one", () => {
  const first = viewer.camera.view.value;
  viewer.camera.zoomBy(0.5);
  const second = viewer.camera.view.value;
  viewer.camera.panBy(0.1);
  expect(viewer.camera.undo()).toBe(true);
  expect(viewer.camera.view.value).toEqual(second);
  viewer.camera.undo();
  expect(viewer.camera.view.value).toEqual(first);
  expect(viewer.camera.undo()).toBe(false);
});

it("moves the selection along a row and between rows", async () => {
  await viewer.select(0);
  expect(label()).toBe("F0.0");
  await viewer.moveFocus("right");
  expect(label()).toBe("F0.1");
  await viewer.moveFocus("down");
  expect(label()).toBe("F1.0");
  await viewer.moveFocus("left");
  expect(label()).toBe("F1.0"); // there is none before it
  await viewer.moveFocus("up");
  expect(label()).toBe("F0.1");
});

it("counts matches that are not shown, and shows what hides the one it goes to", async () => {
  const { found } = viewer.search;
  const hidden = () =>
    hiddenCount(found.value!, viewer.display.flags.value, viewer.display.hiddenKinds.value);
  viewer.display.toggleKind(2);
  viewer.display.hide(0);
  await viewer.search.run("mb:0");
  expect([found.value!.count, hidden()]).toEqual([4, 2]);
  await viewer.nextMatch(1);
  expect([label(), hidden()]).toEqual(["F0.0", 2]);
  expect(viewer.display.rowChoice.value.hidden).toEqual([]);
  expect(viewer.toast.value?.text).toContain("hidden row");
  await viewer.nextMatch(1);
  expect([label(), hidden()]).toEqual(["F1.0", 2]);
  await viewer.nextMatch(1);
  expect([label(), hidden()]).toEqual(["B1.0", 0]);
  expect(viewer.toast.value?.text).toContain("backward");
});

it("switches on the layer of a match", async () => {
  const { source, meta } = sourceOf(TEXT, 1);
  viewer = new Viewer(meta, source);
  await viewer.search.run("F0.1");
  await viewer.nextMatch(1);
  expect(viewer.display.flags.value.has("comm")).toBe(true);
  expect(viewer.toast.value?.text).toContain("transfers");
});

it("shows messages for a few seconds and reads them out", () => {
  viewer.toggle("critical");
  expect(viewer.toast.value?.text).toBe("critical path on");
  expect(viewer.announcement.value).toBe("critical path on");
});

it("goes to the next match and around", async () => {
  await viewer.search.run("kind:B stage:1");
  expect(viewer.search.found.value?.count).toBe(2);
  await viewer.nextMatch(1);
  expect(label()).toBe("B1.0");
  await viewer.nextMatch(1);
  expect(label()).toBe("B1.1");
  await viewer.nextMatch(1);
  expect(label()).toBe("B1.0");
  await viewer.nextMatch(-1);
  expect(label()).toBe("B1.1");
});

it("shows and clears the problem of an invalid query", async () => {
  await viewer.search.run("kind:Q");
  expect(viewer.search.problem.value).toContain("Unknown kind");
  await viewer.search.run("");
  expect([viewer.search.problem.value, viewer.search.found.value]).toEqual(["", null]);
});

it("finds the span at a point", () => {
  viewer.display.size.value = { width: 900, height: 100 };
  viewer.camera.view.value = { start: 0, end: 90 };
  expect(viewer.spanAt(550, 0, 0.5)).toMatchObject({ kind: 2, microbatch: 0, stage: 0 });
  expect(viewer.spanAt(350, 0, 0.5)).toBeNull();
});

it("zooms to what is chosen", async () => {
  await viewer.select(0);
  viewer.focusSelection();
  expect(length(viewer.camera.view.value)).toBeLessThan(75);
  await viewer.selection.setRange({ start: 30, end: 60, rows: [0] });
  viewer.focusSelection();
  expect(viewer.camera.view.value.start).toBeLessThan(30);
  expect(viewer.camera.view.value.end).toBeGreaterThan(60);
});

it("measures a selected block's time on all rows", async () => {
  await viewer.select(0);
  viewer.measure();
  await Promise.resolve();
  expect(viewer.selection.range.value).toEqual({ start: 0, end: 10, rows: [0, 1] });
});

it("restores what a link holds, without what the run does not have", async () => {
  viewer.display.pin(1);
  await viewer.search.run("mb:1");
  await viewer.select(1);
  viewer.display.toggleKind(2);
  const shown = shownOf(viewer);
  const { meta, source } = sourceOf(TEXT);
  const other = new Viewer(meta, source);
  await restore(other, { ...shown, rows: { ...shown.rows, hidden: [99] } });
  expect(shownOf(other)).toEqual(shown);
  expect(other.search.found.value?.count).toBe(4);
});
