import { deflateSync } from "node:zlib";

import { beforeEach, describe, expect, it, vi } from "vitest";

import { Viewer } from "../../src/layout/viewer";
import type { Meta } from "../../src/model/meta";
import { openServer, type ServerSource } from "../../src/model/server";
import { type Freshness, TooManyError } from "../../src/model/source";
import { bytesOf, draw, metaOf } from "../blob";

const META: Meta = {
  ...metaOf(draw("F0 F1 B0 B1\n. F0 B0 ."), 2),
  end: 400,
  levels: [{ bin_ns: 1 }],
  tile_bins: 100,
  tile_rows: 1,
  version: "v1",
};
const SPAN = {
  id: 3,
  row: 0,
  kind: 1,
  lane: 0,
  step: 0,
  stage: 0,
  microbatch: 0,
  start: 0,
  duration: 10,
  wait_duration: null,
  name: null,
};
const TILE = deflateSync(bytesOf({ row: [0], kind: [1], lane: [0], start: [5], duration: [10] }));

type Answer = () => Response | Promise<Response>;
let asked: string[];
let answers: Record<string, Answer>;
let source: ServerSource;
let reported: Freshness[];

const json = (value: unknown, status = 200): Response => new Response(JSON.stringify(value), { status });

/** Answer by the first word of a question: tile, links, ... */
async function serve(address: string): Promise<Response> {
  const question = address.slice("api/".length);
  asked.push(question);
  return answers[question.split("?")[0]!]!();
}

const settle = (): Promise<void> => vi.waitFor(() => expect(source.isBusy).toBe(false), 5000);

beforeEach(async () => {
  asked = [];
  reported = [];
  answers = {
    meta: () => json(META),
    tile: () => new Response(TILE),
    details: () => json(SPAN),
    links: () => json({ spans: [SPAN], links: [] }),
    version: () => json({ version: "v1", problem: null }),
  };
  vi.stubGlobal("fetch", vi.fn(serve));
  source = await openServer();
  source.onFreshness((now) => reported.push(now));
  asked = [];
});

const picture = { start: 0, end: 399, rows: [0, 1], ns_per_pixel: 1 };

describe("tiles", () => {
  it("fetches all that the picture needs though small pictures and the pointer ask beside it", async () => {
    source.tiles(picture);
    const small = source.overview({ start: 0, end: 50, rows: [1], ns_per_pixel: 10 }, () => true);
    source.loaded({ ...picture, rows: [1] });
    await settle();
    const places = asked.filter((one) => one.startsWith("tile") && one.includes("rows=0-1")).length;
    expect(places).toBe(4);
    expect(source.tiles(picture)).toHaveLength(8);
    expect((await small)![0]!.spans.count).toBe(1);
    expect(asked[asked.length - 1]).toBe("tile?level=0&start=0&end=50&rows=1"); // last: the picture comes first
  });

  it("loads no thumbnail that is no longer wanted", async () => {
    expect(await source.overview(picture, () => false)).toBeNull();
    expect(asked).toEqual([]);
  });

  it("asks for nothing where only what is there is wanted", () => {
    expect(source.loaded(picture)).toEqual([]);
    expect(asked).toEqual([]);
  });

  it("asks again for what did not come once the server answers again", async () => {
    answers.tile = () => Promise.reject(new TypeError("Failed to fetch"));
    source.tiles(picture);
    await settle();
    expect(source.tiles(picture)).toEqual([]);
    expect(reported[reported.length - 1]!.problem).toContain("does not answer");
    const before = asked.length;
    await settle();
    expect(asked.length).toBe(before); // not at every picture
    answers.tile = () => new Response(TILE);
    await source.lookForNewer();
    source.tiles(picture);
    await settle();
    expect(source.tiles(picture)).toHaveLength(8);
    expect(reported[reported.length - 1]).toEqual({ hasNewer: false, problem: "" });
  });
});

describe("newer data", () => {
  it("are detected by the version, and errors by the problem", async () => {
    answers.version = () => json({ version: "v1", problem: "cut off" });
    await source.lookForNewer();
    answers.version = () => json({ version: "v2", problem: null });
    await source.lookForNewer();
    expect(reported).toEqual([
      { hasNewer: false, problem: "The newest files cannot be read: cut off" },
      { hasNewer: true, problem: "" },
    ]);
  });

  it.each(["tile", "links", "details"])("are offered where %s is gone", async (what) => {
    answers[what] = () => json({ error: "the run has changed" }, 410);
    const viewer = new Viewer(META, source);
    source.tiles(picture);
    await viewer.select(3);
    expect(viewer.freshness.value).toEqual({
      hasNewer: true,
      problem: "The server no longer has the data of this page.",
    });
  });
});

describe("links that are too many", () => {
  beforeEach(() => {
    answers.links = () => json({ error: "there is more" }, 413);
  });

  it("are an error of their own", async () => {
    await expect(source.links(3, true)).rejects.toThrow(TooManyError);
  });

  it("keep the span selected with a message, and hovering works", async () => {
    const viewer = new Viewer(META, source);
    await viewer.select(3);
    expect(viewer.selection.selected.value?.id).toBe(3);
    expect(viewer.selection.chain.value).toBeNull();
    expect(viewer.announcement.value).toContain("too many");
    await viewer.selection.hoverOver({
      ...SPAN,
      chunk: null,
      pair: null,
      peer: null,
      bytes: null,
      wait: null,
    });
    expect(viewer.selection.hoverLinks.value).toBeNull();
    expect(viewer.problem.value).toBe("");
  });
});

describe("what goes wrong", () => {
  it("is no span where there is none of that number", async () => {
    answers.details = () => json({ error: "nothing" }, 404);
    expect(await source.details(99)).toBeNull();
  });

  it("has the message of the server", async () => {
    answers.select = () => json({ error: "rows: expected numbers below 2" }, 400);
    const viewer = new Viewer(META, source);
    await viewer.selection.setRange({ start: 0, end: 10, rows: [7] });
    expect(viewer.problem.value).toBe("The server answered 400: rows: expected numbers below 2.");
  });
});
