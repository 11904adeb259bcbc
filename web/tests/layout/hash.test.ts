import { describe, expect, it } from "vitest";

import { fromHash, NOTHING_CHOSEN, type Shown, toHash } from "../../src/layout/hash";

const ALL: Shown = {
  view: { start: -5, end: 123456789012 },
  rows: { group: "machine", sort: "stage", pinned: [3, 1], hidden: [7] },
  query: 'kind:B dur>5ms "a&b=#"',
  selected: 42,
  range: { start: 10, end: 20, rows: [0, 1, 2, 5] },
  hiddenKinds: ["backward_weight"],
  cause: "exposed_communication",
  scroll: 120,
  ideal: "under",
  flags: ["arrows", "critical"],
  pitch: 30,
  theme: "dark",
  panel: "none",
  isCompared: false,
  interval: 12,
  notes: [
    { time: 12, rank: 3, text: "why? a~b@c & 100 % <b>" },
    { time: -5, rank: null, text: "慢的步骤" },
  ],
  steps: [5, 3] as [number, number],
};

describe("the address", () => {
  it("brings back everything that it holds", () => expect(fromHash(`#${toHash(ALL)}`)).toEqual(ALL));

  it("is empty at first", () => {
    expect(toHash(NOTHING_CHOSEN)).toBe("");
    expect(fromHash("")).toEqual(NOTHING_CHOSEN);
  });

  it("distinguishes no notes from none that it states", () => {
    const empty = { ...NOTHING_CHOSEN, notes: [] };
    expect(fromHash(toHash(empty))).toEqual(empty);
  });

  it.each([
    "t=5-3",
    "t=x",
    "span=-1",
    "range=1-2",
    "group=zebra&sort=&theme=x",
    "pin=a.b&hide=<script>",
    "pitch=0",
    "%%%",
    "range=1-2@9-999999999",
  ])("that is malformed, %s, harms nothing", (hash) => {
    const shown = fromHash(hash);
    expect(shown.view).toBeNull();
    expect(shown.selected).toBeNull();
    expect(shown.rows).toEqual(NOTHING_CHOSEN.rows);
    expect(shown.range?.rows ?? []).toEqual([]);
  });
});
