import { describe, expect, it } from "vitest";

import { divideRow, showsKernels } from "../../src/layout/bands";

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
