import { expect, it } from "vitest";

import { findLinks } from "../../src/model/links";
import { sourceOf, tableOf } from "../blob";

/** Ids: row 0 has F0.0 F0.1 B0.0 B0.1 (0 to 3), row 1 has F1.0 F1.1 B1.0 B1.1 (4 to 7). */
const { meta, spans } = sourceOf(`
  F0 F1 .  .  .  B0 - B1 -
  .  F0 F1 B0 -  B1 - .  .`);
const table = tableOf({ from: [0, 4, 6, 1, 5, 7], to: [4, 6, 2, 5, 7, 3] });

it("links a span to its direct neighbors", () => {
  const found = findLinks(spans, meta, table, 4, false);
  expect(found.links).toEqual([
    [0, 4],
    [4, 6],
  ]);
  expect(found.spans.map((span) => span.id).sort()).toEqual([0, 4, 6]);
});

it("links all actions of the micro-batch, and of no other", () => {
  const { links } = findLinks(spans, meta, table, 0, true);
  expect(links).toEqual([
    [0, 4],
    [4, 6],
    [6, 2],
  ]);
});

it("returns the span alone where it has no links", () =>
  expect(findLinks(spans, meta, tableOf({ from: [], to: [] }), 0, true)).toMatchObject({
    spans: [{ id: 0 }],
    links: [],
  }));
