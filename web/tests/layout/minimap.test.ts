import { describe, expect, it } from "vitest";

import { MOST_ROWS, minimapRows, moveView, viewBox } from "../../src/layout/minimap";
import { Viewer } from "../../src/layout/viewer";
import { sourceOf } from "../blob";

function viewerOf(ranks: number): Viewer {
  const { meta, source } = sourceOf(Array.from({ length: ranks }, () => "F0 . B0 . . . . B1").join("\n"));
  const viewer = new Viewer(meta, source);
  viewer.display.size.value = { width: 500, height: 140 };
  return viewer;
}

describe("the overview", () => {
  it("draws every row, and evenly chosen ones of many", () => {
    expect(minimapRows(viewerOf(4))).toEqual([0, 1, 2, 3]);
    const rows = minimapRows(viewerOf(400));
    expect(rows).toHaveLength(MOST_ROWS);
    expect(rows.slice(0, 3)).toEqual([0, 10, 20]);
  });

  it("has a box around the time in view, and the rows where not all are seen", () => {
    const viewer = viewerOf(4);
    const { start, end } = viewer.camera.bounds;
    viewer.camera.view.value = { start, end };
    expect(viewBox(viewer, 100, 40)).toEqual({ left: 0, top: 0, width: 100, height: 40 });
    viewer.camera.view.value = { start: start + (end - start) / 2, end };
    expect(viewBox(viewer, 100, 40)).toMatchObject({ left: 50, width: 50 });
    viewer.display.setPitch(70);
    viewer.display.setScroll(70);
    expect(viewBox(viewer, 100, 40)).toMatchObject({ top: 10, height: 20 });
  });

  it("moves the view, and not beyond the run", () => {
    const viewer = viewerOf(4);
    const { start, end } = viewer.camera.bounds;
    viewer.display.setPitch(70);
    viewer.camera.view.value = { start, end: start + (end - start) / 4 };
    moveView(viewer, { x: 25, y: 10 }, 100, 40);
    expect(viewBox(viewer, 100, 40)).toMatchObject({ left: 25, width: 25, top: 10 });
    moveView(viewer, { x: 500, y: 500 }, 100, 40);
    expect(viewBox(viewer, 100, 40)).toMatchObject({ left: 75, top: 20 });
  });
});
