import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { compareWith, renewComparison, showOther } from "../../src/layout/compared";
import { fromHash, toHash } from "../../src/layout/hash";
import { restore, shownOf } from "../../src/layout/shown";
import { Viewer } from "../../src/layout/viewer";
import { type Comparison, compareRuns } from "../../src/model/compare";
import { TooManyError } from "../../src/model/source";
import { sourceOf } from "../blob";

const OWN = "F0 - B0 -";

function comparisonWith(text: string): Comparison {
  const [own, other] = [sourceOf(OWN), sourceOf(text)];
  return compareRuns([own.meta, own.spans], [other.meta, other.spans]);
}

/** A viewer of a page that brought another run, and how often that was read. */
function pair(read: () => Promise<Comparison | null> = () => Promise.resolve(comparisonWith("F0 B0"))): {
  viewer: Viewer;
  reads: () => number;
} {
  const { meta, source } = sourceOf(OWN);
  let reads = 0;
  source.comparison = () => {
    reads++;
    return read();
  };
  return { viewer: new Viewer({ ...meta, sections: ["comparison"] }, source), reads: () => reads };
}

const linkOf = (viewer: Viewer): string => toHash(shownOf(viewer));

describe("a page that has to load the other run", () => {
  const frames: (() => void)[] = [];
  beforeEach(() => void vi.stubGlobal("requestAnimationFrame", (go: () => void) => frames.push(go)));
  afterEach(() => vi.unstubAllGlobals());
  const later = (viewer: Viewer): void => void Object.assign(viewer.source, { loadsComparison: true });

  it("is shown before they are compared", async () => {
    const { viewer, reads } = pair();
    later(viewer);
    await restore(viewer, fromHash(""));
    expect([viewer.comparison.value, viewer.comparing.value, reads()]).toEqual([null, 1, 0]);
    expect(linkOf(viewer)).toBe("");
    for (const go of frames.splice(0)) go();
    await vi.waitFor(() => expect(viewer.comparison.value).not.toBeNull());
    expect(viewer.comparing.value).toBe(0);
  });

  it("states that a step is too large, and where its changes are", async () => {
    const { viewer } = pair(() => Promise.reject(new TooManyError("too many")));
    later(viewer);
    await restore(viewer, fromHash(""));
    for (const go of frames.splice(0)) go();
    await vi.waitFor(() => expect(viewer.problem.value).toContain("This step has too many spans"));
    expect(viewer.comparing.value).toBe(0);
  });

  it("is not compared if that is ended before", async () => {
    const { viewer } = pair();
    later(viewer);
    await restore(viewer, fromHash(""));
    await showOther(viewer, false);
    for (const go of frames.splice(0)) go();
    await vi.waitFor(() => expect(viewer.comparing.value).toBe(0));
    expect(viewer.comparison.value).toBeNull();
  });
});

describe("a page that brought another run", () => {
  it("opens compared with it, and the link of that is empty", async () => {
    const { viewer } = pair();
    await restore(viewer, fromHash(""));
    expect([0, 1].map(viewer.comparison.value!.delta)).toEqual([1, 1]);
    expect(linkOf(viewer)).toBe("");
  });

  it("does not read it if the link turns the comparison off", async () => {
    const { viewer, reads } = pair();
    await restore(viewer, fromHash("compare=off"));
    expect([viewer.comparison.value, reads(), linkOf(viewer)]).toEqual([null, 0, "compare=off"]);
  });

  it("ends the comparison and shows it again, and follows a link that changes", async () => {
    const { viewer } = pair();
    await restore(viewer, fromHash(""));
    compareWith(viewer, null);
    expect([viewer.comparison.value, linkOf(viewer)]).toEqual([null, "compare=off"]);
    await showOther(viewer, true);
    expect(viewer.comparison.value).not.toBeNull();
    await restore(viewer, fromHash("compare=off&theme=dark"));
    expect([viewer.comparison.value, linkOf(viewer)]).toEqual([null, "theme=dark&compare=off"]);
  });

  it("keeps a third run that was opened, which no link brings back", async () => {
    const { viewer } = pair();
    await restore(viewer, fromHash(""));
    const third = comparisonWith("F0 - - B0");
    compareWith(viewer, third);
    await restore(viewer, fromHash("compare=off&theme=dark"));
    expect(viewer.comparison.value).toBe(third);
  });

  it("does not bring back what was ended while it was read", async () => {
    let arrive = (_: Comparison): void => {};
    const { viewer } = pair(() => new Promise((resolve) => (arrive = resolve)));
    const opening = restore(viewer, fromHash(""));
    compareWith(viewer, null);
    arrive(comparisonWith("F0 B0"));
    await opening;
    expect(viewer.comparison.value).toBeNull();
  });

  it("shows the first run and an error if the second is unreadable", async () => {
    const { viewer } = pair(() => Promise.reject(new Error("It is cut off.")));
    await restore(viewer, fromHash(""));
    expect([viewer.comparison.value, viewer.problem.value]).toEqual([
      null,
      "These runs cannot be compared. It is cut off.",
    ]);
    expect(linkOf(viewer)).toBe(""); // the link of a whole copy shows the comparison
  });
});

it("ends where another version of the run comes, in which spans have other numbers, and is made again", async () => {
  const { viewer } = pair();
  await restore(viewer, fromHash(""));
  const before = viewer.comparison.value;
  const later = sourceOf(OWN);
  later.source.comparison = () => Promise.resolve(comparisonWith("F0 - - B0"));
  viewer.replace({ ...later.meta, sections: ["comparison"] }, later.source, null, null);
  expect(viewer.comparison.value).toBeNull();
  await renewComparison(viewer, before);
  expect(viewer.comparison.value).not.toBeNull();
  expect(viewer.comparison.value).not.toBe(before);
});

it("a page of one run knows no such link", async () => {
  const { meta, source } = sourceOf(OWN);
  const viewer = new Viewer(meta, source);
  await restore(viewer, fromHash("compare=off"));
  expect([viewer.comparison.value, linkOf(viewer)]).toEqual([null, ""]);
  expect(await source.comparison()).toBeNull();
});
