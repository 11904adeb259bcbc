import { describe, expect, it } from "vitest";

import { compileQuery, findPlaces, QueryError } from "../../src/model/query";
import { sourceOf } from "../blob";

const { meta, spans } = sourceOf(`
  F0 F1 .  .  B0 - B1 -
  .  F0 F1 B0 -  B1 - .`);

function found(query: string): string[] {
  return [...findPlaces(compileQuery(query, meta, spans)!, spans)].map((place) => {
    const span = spans.span(place);
    return `${meta.kinds.find((kind) => kind.code === span.kind)!.letter}${span.stage}.${span.microbatch}`;
  });
}

describe("a query", () => {
  it("finds by stage, micro-batch and kind, all of which have to hold", () => {
    expect(found("stage:1 mb:0 kind:B")).toEqual(["B1.0"]);
    expect(found("kind:forward")).toEqual(["F0.0", "F0.1", "F1.0", "F1.1"]);
    expect(found("kind:F,B rank:0")).toEqual(["F0.0", "F0.1", "B0.0", "B0.1"]);
  });

  it("finds by duration with a unit", () => {
    expect(found("dur>10ns")).toEqual(["B0.0", "B0.1", "B1.0", "B1.1"]);
    expect(found("dur<=0.01us")).toEqual(["F0.0", "F0.1", "F1.0", "F1.1"]);
  });

  it("finds ranges and lists", () => expect(found("mb:0-1 stage:0,1 kind:F")).toHaveLength(4));

  it("finds actions as the papers write them", () => {
    expect(found("F1.0")).toEqual(["F1.0"]);
    expect(found("B1")).toEqual(["B0.1", "B1.1"]);
  });

  it("without a word matches nothing", () => expect(compileQuery("  ", meta, spans)).toBeNull());

  it.each([
    ["colour:red", 'Nothing is called "colour"'],
    ["kind:Q", 'No kind is called "Q"'],
    ["dur>fast", '"fast" is no duration'],
    ["mb:x", "neither a number"],
    ["lane:gpu", 'No lane is called "gpu"'],
  ])("that makes no sense, %s, is explained", (query, words) => {
    expect(() => compileQuery(query, meta, spans)).toThrow(QueryError);
    expect(() => compileQuery(query, meta, spans)).toThrow(words);
  });
});
