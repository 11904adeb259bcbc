import { describe, expect, it } from "vitest";

import { compareRuns } from "../../src/model/compare";
import { sourceOf } from "../blob";

describe("two runs", () => {
  it("are matched action by action, and the change is a fraction of the other's duration", () => {
    const own = sourceOf("F0 - B0 -");
    const other = sourceOf("F0 B0 - F1");
    const comparison = compareRuns(own.meta, own.spans, other.meta, other.spans);
    expect([...comparison.delta]).toEqual([1, 0]);
    expect([comparison.matched, comparison.unmatched]).toEqual([2, 0]);
    expect([comparison.own_ns, comparison.other_ns]).toEqual([40, 30]);
  });

  it("that have nothing in common match nothing", () => {
    const own = sourceOf("F0");
    const other = sourceOf("F1");
    expect(compareRuns(own.meta, own.spans, other.meta, other.spans)).toMatchObject({
      matched: 0,
      unmatched: 1,
    });
  });
});
