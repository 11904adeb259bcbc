import { describe, expect, it } from "vitest";
import { axisTicks } from "../../src/layout/ticks";
import { framed, hold, LEAST_LENGTH_NS, length, pan, pixelOf, timeAt, zoom } from "../../src/layout/view";

const BOUNDS = { start: 0, end: 1000 };

describe("zoom", () => {
  it("leaves the time under the pointer where it is", () => {
    const view = { start: 200, end: 600 };
    for (const anchor of [0, 0.25, 0.9]) {
      const near = zoom(view, 0.5, anchor, BOUNDS);
      expect(timeAt(near, 100, 100 * anchor)).toBeCloseTo(timeAt(view, 100, 100 * anchor), 9);
      expect(length(near)).toBeCloseTo(200, 9);
    }
  });

  it("ends at a few nanoseconds and at the whole run", () => {
    expect(length(zoom({ start: 0, end: 100 }, 1e-9, 0.5, BOUNDS))).toBe(LEAST_LENGTH_NS);
    expect(zoom({ start: 0, end: 100 }, 1e9, 0.5, BOUNDS)).toEqual(BOUNDS);
  });
});

describe("pan", () => {
  it("stops at the ends without stretching", () => {
    expect(pan({ start: 100, end: 300 }, -5, BOUNDS)).toEqual({ start: 0, end: 200 });
    expect(pan({ start: 100, end: 300 }, 50, BOUNDS)).toEqual({ start: 800, end: 1000 });
  });
});

it("times and pixels are each other's inverse", () => {
  const view = { start: 7, end: 1007 };
  expect(timeAt(view, 640, pixelOf(view, 640, 333))).toBeCloseTo(333, 9);
});

it("fits with a margin, even around a single time", () => {
  const view = framed(50, 50);
  expect(view.start).toBeLessThan(50);
  expect(length(view)).toBeGreaterThanOrEqual(LEAST_LENGTH_NS);
  expect(hold(framed(0, 1000), framed(0, 1000))).toEqual(framed(0, 1000));
});

describe("the axis", () => {
  it("has nice marks in one unit that count from the origin", () => {
    const { unit, ticks } = axisTicks({ start: 5e6, end: 15e6 }, 5e6, 5, "ns");
    expect(unit).toBe("ms");
    expect(ticks.map((tick) => tick.text)).toEqual(["0", "2", "4", "6", "8", "10"]);
  });

  it("never has thousands of marks, however far the view reaches", () => {
    expect(axisTicks({ start: -1e18, end: 1e18 }, 0, 10, "ns").ticks.length).toBeLessThan(20);
    expect(axisTicks({ start: 3_600e9, end: 3_600e9 + 100 }, 0, 10, "ns").ticks.length).toBeLessThan(25);
  });

  it("writes units of cost without a unit", () => {
    const { unit, ticks } = axisTicks({ start: 0, end: 4e6 }, 0, 4, "cost");
    expect([unit, ...ticks.map((tick) => tick.text)]).toEqual(["", "0", "1", "2", "3", "4"]);
  });
});
