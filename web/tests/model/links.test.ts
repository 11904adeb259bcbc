import { describe, expect, it } from "vitest";

import { findLinks } from "../../src/model/links";
import { sourceOf } from "../blob";

const { meta, spans } = sourceOf(`
  F0 F1 .  .  .  B0 - B1 -
  .  F0 F1 B0 -  B1 - .  .`);

function names(whole: boolean, letter: string, stage: number): string[] {
  const label = (id: number): string => {
    const span = spans.span(id);
    return `${meta.kinds.find((kind) => kind.code === span.kind)!.letter}${span.stage}.${span.microbatch}`;
  };
  const place = Array.from({ length: spans.count }, (_, i) => i).find(
    (i) => label(i) === `${letter}${stage}.0`,
  )!;
  return findLinks(spans, meta, place, whole)
    .links.map(([from, to]) => `${label(from)}>${label(to)}`)
    .sort();
}

describe("links", () => {
  it("of one hop are the input and the consumers", () => {
    expect(names(false, "F", 1)).toEqual(["F0.0>F1.0", "F1.0>B1.0"]);
    expect(names(false, "B", 0)).toEqual(["B1.0>B0.0"]);
  });

  it("of a chain are the whole way of the micro-batch and of no other", () => {
    expect(names(true, "F", 0)).toEqual(["B1.0>B0.0", "F0.0>F1.0", "F1.0>B1.0"]);
  });

  it("stay within the pipeline", () => {
    const apart = { ...meta, ranks: { ...meta.ranks, pipeline: [0, 1] } };
    expect(findLinks(spans, apart, 0, true).links.length).toBe(1); // F0.0 > B0.0: the same rank
  });

  it("know the halves of a split backward", () => {
    const split = sourceOf("F0 I0 W0");
    const { links } = findLinks(split.spans, split.meta, 0, true);
    expect(links).toEqual([
      [0, 1],
      [1, 2],
    ]);
  });
});
