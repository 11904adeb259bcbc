import { expect, it } from "vitest";

import { continues, firstLength, hasView, laterRow, latestView, showsEnd } from "../../src/layout/live";
import { Viewer } from "../../src/layout/viewer";
import { sourceOf } from "../blob";

const SHORT = `
  F0 F1 .  .  .  B0 - B1 -
  .  F0 F1 B0 -  B1 - .  .`;

it("follows the end of the data with a margin, at the length of the view", () => {
  const { meta } = sourceOf(SHORT);
  const view = latestView(meta, 100);
  expect(view.end - view.start).toBeCloseTo(100);
  expect(view.end).toBeCloseTo(meta.end + 2);
  expect(showsEnd(view, meta)).toBe(true);
  expect(showsEnd({ start: 0, end: meta.end / 2 }, meta)).toBe(false);
  expect(firstLength(meta)).toBeGreaterThanOrEqual(meta.end);
});

it("holds a view that later data no longer have", () => {
  expect(hasView({ start: 50, end: 90 }, -40)).toBe(true);
  expect(hasView({ start: 50, end: 90 }, -60)).toBe(false);
  expect(hasView({ start: -20, end: 90 }, 0)).toBe(true);
});

it("takes data of the same ranks at a later time as the same run", () => {
  const { meta } = sourceOf(SHORT);
  const more = { ...meta, end: meta.end + 10, ranks: { ...meta.ranks, rank: [0, 1, 2] } };
  expect(continues(meta, more)).toBe(true);
  expect(continues(meta, { ...more, ranks: { ...meta.ranks, rank: [0, 2] } })).toBe(false);
  expect(continues(meta, { ...more, end: meta.end - 1 })).toBe(false);
  expect(laterRow(meta, { ...more, ranks: { ...meta.ranks, rank: [7, 0, 1] } }, 1)).toBe(2);
});

it("keeps view, range and selected span where they are when later data begin later", async () => {
  const { meta, source } = sourceOf(SHORT);
  const viewer = new Viewer(meta, source);
  await viewer.select(2);
  viewer.camera.view.value = { start: 20, end: 60 };
  await viewer.selection.setRange({ start: 30, end: 40, rows: [0] });
  const later = sourceOf(SHORT);
  const base_ns = String(BigInt(meta.base_ns) + 10n);
  viewer.replace({ ...later.meta, base_ns }, later.source, null, 3);
  expect(viewer.camera.view.value).toEqual({ start: 10, end: 50 });
  expect(viewer.selection.range.value).toEqual({ start: 20, end: 30, rows: [0] });
  await Promise.resolve();
  await Promise.resolve();
  expect(viewer.selection.selected.value!.id).toBe(3);
  expect(viewer.source).toBe(later.source);
});
