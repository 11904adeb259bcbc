import { describe, expect, it } from "vitest";

import { divideRow, showsKernels, stripsOf } from "../../src/layout/bands";

const NONE = { thin: false, ghost: false, kernels: false };

describe("the lanes of a row", () => {
  it("are the actions alone without others, and in low rows", () => {
    expect(divideRow(100, NONE).mainHeight).toBe(100);
    expect(divideRow(7, { thin: true, ghost: true, kernels: true }).mainHeight).toBe(7);
    expect(divideRow(15, { ...NONE, kernels: true }).kernelHeight).toBe(0);
  });

  it("follow each other from the top without overlapping", () => {
    for (const kernels of [false, true])
      for (const ghost of [false, true])
        for (const thin of [false, true]) {
          const bands = divideRow(100, { thin, ghost, kernels });
          const lanes = [
            [0, bands.mainHeight],
            ...(kernels ? [[bands.kernelTop, bands.kernelHeight]] : []),
            ...(ghost ? [[bands.ghostTop, bands.ghostHeight]] : []),
            ...(thin ? [[bands.thinTop, bands.thinHeight]] : []),
          ] as [number, number][];
          for (let i = 1; i < lanes.length; i++)
            expect(lanes[i]![0]).toBeCloseTo(lanes[i - 1]![0] + lanes[i - 1]![1] + 1);
          const [top, height] = lanes.at(-1)!;
          expect(top + height).toBeCloseTo(100);
        }
  });
});

describe("kernels", () => {
  it.each([
    [1000, 999, true],
    [1000, 1001, false],
    [0, 0, false],
  ])("of typically %i ns at %i ns per pixel are shown: %s", (typical, perPixel, shown) => {
    expect(showsKernels(typical, perPixel)).toBe(shown);
  });
});

describe("the pixel lines of bands", () => {
  const band = (place: number, height: number, lines: number) => ({
    top: 34 + place * height,
    height,
    line: place * lines,
    division: { lines, isStacked: lines > 1 },
  });

  it("are drawn at once where bands touch and have a line for each pixel", () => {
    const bands = [0, 1, 2, 3].map((place) => band(place, 1, 1));
    expect(stripsOf(bands, 1, 1)).toEqual([{ line: 0, count: 4, top: 34, height: 4 }]);
  });

  it("are drawn by band where there is a gap or a line is higher than a pixel", () => {
    const apart = [band(0, 4, 4), { ...band(1, 4, 4), top: 39 }];
    expect(stripsOf(apart, 1, 1)).toHaveLength(2);
    const stretched = [band(0, 1, 1), band(1, 1, 1)];
    expect(stripsOf(stretched, 1, 2).map(({ top, height }) => [top, height])).toEqual([
      [68, 2],
      [70, 2],
    ]);
    // Of two sublanes in one pixel, the first one is drawn.
    expect(stripsOf([band(0, 1, 2), band(1, 1, 2)], 2, 1).map(({ line }) => line)).toEqual([0, 2]);
  });
});
