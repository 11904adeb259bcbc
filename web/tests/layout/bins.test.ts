import { describe, expect, it } from "vitest";

import { type Paint, paintTrack } from "../../src/layout/bins";
import { sourceOf } from "../blob";

const RED = 0x0000ff;
const palette = { color: (kind: number) => (kind === 1 ? RED : 0xff0000) };

function paint(width: number, view: { start: number; end: number }, blockWidth: number): Paint {
  return {
    view,
    width,
    depth: 1,
    blockWidth,
    palette,
    hiddenKinds: new Uint8Array(256),
    wanted: null,
    override: null,
  };
}

function painted(text: string, width: number, view: { start: number; end: number }, blockWidth = Infinity) {
  const { spans } = sourceOf(text);
  const lines = new Uint32Array(width);
  const tile = { spans, start: -Infinity, end: Infinity };
  const blocks = paintTrack(tile, spans.track(0, 0), paint(width, view, blockWidth), lines, 0);
  return { lines, blocks };
}

const alpha = (pixel: number): number => pixel >>> 24;

describe("painting", () => {
  it("covers a pixel as far as spans cover it", () => {
    const { lines } = painted("F0 . F1 .", 2, { start: 0, end: 40 });
    expect([...lines].map(alpha)).toEqual([128, 128]);
  });

  it("leaves idle time empty and full time opaque", () => {
    const { lines } = painted("F0 - - - . . . .", 8, { start: 0, end: 80 });
    expect([...lines].map((pixel) => alpha(pixel) > 0)).toEqual([
      true,
      true,
      true,
      true,
      false,
      false,
      false,
      false,
    ]);
  });

  it("mixes colors by their share", () => {
    const { lines } = painted("F0 B0", 1, { start: 0, end: 20 });
    expect(lines[0]! & 255).toBeCloseTo(127, -1);
    expect((lines[0]! >> 16) & 255).toBeCloseTo(127, -1);
  });

  it("hands out what is wide enough as blocks, cut at the edges of the view", () => {
    const { blocks } = painted("F0 - - - - - - -", 80, { start: 20, end: 60 }, 10);
    expect(blocks.map((block) => [block.left, block.right])).toEqual([[0, 80]]);
  });

  it("loses nothing: coverage is the same at every zoom", () => {
    const text = "F0 . B0 - . F1 F2 . . B1 - - . F3 . .";
    for (const width of [16, 32, 160]) {
      const { lines } = painted(text, width, { start: 0, end: 160 });
      const covered = [...lines].reduce((sum, pixel) => sum + alpha(pixel) / 255, 0) / width;
      expect(covered).toBeGreaterThan(0.5);
      expect(covered).toBeLessThanOrEqual(9 / 16 + 0.01);
    }
  });

  it("leaves out kinds that are hidden", () => {
    const { spans } = sourceOf("F0 B0");
    const lines = new Uint32Array(2);
    const hidden = {
      ...paint(2, { start: 0, end: 20 }, Infinity),
      hiddenKinds: new Uint8Array(256).fill(1, 1, 2),
    };
    paintTrack({ spans, start: -Infinity, end: Infinity }, spans.track(0, 0), hidden, lines, 0);
    expect([...lines].map(alpha)).toEqual([0, 255]);
  });
});
