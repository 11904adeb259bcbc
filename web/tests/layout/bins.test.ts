import { describe, expect, it } from "vitest";
import { type Division, divideBand } from "../../src/layout/bands";
import { type Paint, paintTrack } from "../../src/layout/bins";
import { Mixture } from "../../src/layout/mixture";
import { sourceOf } from "../blob";

const RED = 0x0000ff;
const palette = { shades: 1, colors: new Int32Array(256).fill(0xff0000).fill(RED, 1, 2) };

function paint(width: number, view: { start: number; end: number }, blockWidth: number): Paint {
  return {
    view,
    width,
    depth: 1,
    blockWidth,
    palette,
    hiddenKinds: new Uint8Array(256),
    wanted: null,
  };
}

function painted(text: string, width: number, view: { start: number; end: number }, blockWidth = Infinity) {
  return paintLines(text, paint(width, view, blockWidth), { lines: 1, isStacked: false });
}

function paintLines(text: string, settings: Paint, division: Division, turn = 0) {
  const { spans } = sourceOf(text);
  const lines = new Uint32Array(settings.width * division.lines);
  const tile = { spans, start: -Infinity, end: Infinity };
  const target = { lines, offset: 0, division, turn, mixtures: [new Mixture()] };
  const blocks = paintTrack([{ tile, track: spans.track(0, 0), override: null }], settings, target);
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
    const hidden = {
      ...paint(2, { start: 0, end: 20 }, Infinity),
      hiddenKinds: new Uint8Array(256).fill(1, 1, 2),
    };
    const { lines } = paintLines("F0 B0", hidden, { lines: 1, isStacked: false });
    expect([...lines].map(alpha)).toEqual([0, 255]);
  });
});

/** 300 micro-batches, each a forward and a backward of twice its length, in 100 pixels. */
const DENSE = Array.from({ length: 300 }, () => "F0 B0 -").join(" ");
const BLUE = 0xff0000;

function dense(width: number, division: Division, turn = 0): number[][] {
  const { lines } = paintLines(DENSE, paint(width, { start: 0, end: 9000 }, Infinity), division, turn);
  return Array.from({ length: division.lines }, (_, line) => [
    ...lines.slice(line * width, (line + 1) * width),
  ]);
}

describe("mixtures", () => {
  it("show the kinds of a pixel above each other, each as high as its share", () => {
    const lines = dense(100, { lines: 12, isStacked: true });
    for (const at of [0, 37, 50, 99]) {
      const colors = lines.map((line) => line[at]! & 0xffffff);
      expect(colors.map((color) => (color === RED ? "F" : color === BLUE ? "B" : "?")).join("")).toMatch(
        /^F{3,4}\??B{7,8}$/,
      );
      expect(lines.every((line) => alpha(line[at]!) === 255)).toBe(true);
    }
  });

  it("have no stripes where micro-batches are sampled pixel by pixel", () => {
    for (const width of [170, 190, 211, 233, 251]) {
      const lines = dense(width, { lines: 12, isStacked: true }).slice(1, -1);
      const heights = Array.from(
        { length: width - 10 },
        (_, i) => lines.reduce((sum, line) => sum + (line[i + 5]! & 255), 0) / 255,
      );
      expect(Math.max(...heights) - Math.min(...heights), `${width} pixels`).toBeLessThan(1.1);
    }
  });

  it("have the shares in neighboring lines of low rows, whatever row is the first on the screen", () => {
    const lines = Array.from(
      { length: 8 },
      (_, turn) => dense(100, { lines: 1, isStacked: false }, turn)[0]!,
    );
    const colors = lines.map((line) => line[50]! & 0xffffff);
    expect(new Set(colors)).toEqual(new Set([RED, BLUE]));
    expect(colors.filter((color) => color === RED)).toHaveLength(3);
    expect(dense(100, { lines: 1, isStacked: false }, 8)[0]).toEqual(lines[0]);
  });

  it("do not hide a lone narrow span, and do not blur idle time around it", () => {
    const { lines } = painted("F0 . . . . . . . . . . . . . . .", 16 / 2, { start: 0, end: 160 });
    expect([...lines].map((pixel) => alpha(pixel) > 0)).toEqual([true, ...Array(7).fill(false)]);
  });

  it("keep the covered fraction", () => {
    const half = Array.from({ length: 300 }, () => "F0 .").join(" ");
    const { lines } = paintLines(half, paint(100, { start: 0, end: 6000 }, Infinity), {
      lines: 8,
      isStacked: true,
    });
    expect([...lines].every((pixel) => Math.abs(alpha(pixel) - 128) < 3)).toBe(true);
  });

  it("are the same whether spans are added one by one or all at once", () => {
    const mixed = `F0 B0 - . F1 F2 - - - . ${DENSE} . . B1 - - - - F3 . .`;
    for (const width of [7, 100, 333, 2000])
      for (const [from, to] of [
        [0, 9300],
        [13, 4711],
        [9111, 9290],
      ] as const) {
        const plain = paint(width, { start: from, end: to }, 200);
        const oneByOne = { ...plain, wanted: () => true };
        const [lines, others] = [plain, oneByOne].map(
          (settings) => paintLines(mixed, settings, { lines: 3, isStacked: true }).lines,
        );
        expect(lines).toEqual(others);
      }
  });

  it("leave a line to each sublane of low bands", () => {
    expect(divideBand(1, 2, 20)).toEqual({ lines: 1, isStacked: false });
    expect(divideBand(12, 1, 20)).toEqual({ lines: 12, isStacked: true });
    expect(divideBand(80, 2, 20)).toEqual({ lines: 16, isStacked: true });
    expect(divideBand(12, 1, 50)).toEqual({ lines: 6, isStacked: true });
    expect(divideBand(8, 2, 20)).toEqual({ lines: 4, isStacked: false });
  });
});
