/** The cases that the local server runs too (tests/viewer/tiles/test_shared_cases.py). */

import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";

import { IdleIntervals } from "../../src/model/idle";
import { LANES, type Meta } from "../../src/model/meta";
import { compileQuery, findPlaces, QueryError } from "../../src/model/query";
import { Spans } from "../../src/model/spans";
import { computeStatistics } from "../../src/model/statistics";
import { metaOf, tableOf } from "../blob";

interface Case {
  row: number;
  kind: string;
  lane: string;
  name?: string;
  [column: string]: number | string | undefined;
}

interface Cases {
  ranks: { rank: number; machine: string }[];
  spans: Case[];
  idle: { row: number; start: number; duration: number; waiting_for: string }[];
  queries: { query: string; ids?: number[]; error?: string }[];
  statistics: { start: number; end: number; rows: number[]; expected: Record<string, unknown> }[];
}

const file = new URL("../../../tests/data/viewer/cases.json", import.meta.url);
const cases = JSON.parse(readFileSync(file, "utf8")) as Cases;

const KINDS: [string, string, number][] = [
  ["forward", "F", 1],
  ["backward", "B", 2],
  ["backward_input", "I", 3],
  ["backward_weight", "W", 4],
  ["optimizer", "O", 5],
  ["send_forward", "s", 6],
  ["recv_forward", "r", 7],
  ["recv_backward", "R", 8],
  ["other", "x", 9],
];
const NUMBERS = ["row", "step", "stage", "chunk", "microbatch", "pair", "peer", "start", "duration"];

const drawn = metaOf([], cases.ranks.length);
const kinds = KINDS.map(([name, letter, code]) => ({ ...drawn.kinds[0]!, name, letter, code }));
const rank = cases.ranks.map((one) => one.rank);
const machine = cases.ranks.map((one) => one.machine);
const meta: Meta = { ...drawn, kinds, ranks: { ...drawn.ranks, rank, machine } };
const codeOf = (kind: string): number => kinds.find((one) => one.name === kind)!.code;
const spans = spansOfCases();
const idle = idleOfCases();

function spansOfCases(): Spans {
  const column = (of: (one: Case) => number | null): (number | null)[] => cases.spans.map(of);
  const names = [...new Set(cases.spans.flatMap((one) => one.name ?? []))];
  const numbers = [...NUMBERS, "wait", "wait_duration"].map((name) => [
    name,
    column((one) => (one[name] as number | undefined) ?? null),
  ]);
  const table = tableOf({
    ...Object.fromEntries(numbers),
    kind: column((one) => codeOf(one.kind)),
    lane: column((one) => LANES.indexOf(one.lane)),
    name: column((one) => (one.name === undefined ? null : names.indexOf(one.name))),
  });
  table.words = () => names;
  return new Spans(table);
}

function idleOfCases(): IdleIntervals {
  const waits = [...new Set(cases.idle.map((one) => one.waiting_for))];
  const table = tableOf({
    row: cases.idle.map((one) => one.row),
    start: cases.idle.map((one) => one.start),
    duration: cases.idle.map((one) => one.duration),
    waiting_for: cases.idle.map((one) => waits.indexOf(one.waiting_for)),
  });
  table.words = () => waits;
  return new IdleIntervals(table);
}

describe("queries", () => {
  it.each(cases.queries)("$query", ({ query, ids, error }) => {
    if (error !== undefined) {
      // The list of kinds depends on the run.
      const [start] = error.split(" Kinds:");
      expect(() => compileQuery(query, meta, spans)).toThrow(QueryError);
      expect(() => compileQuery(query, meta, spans)).toThrow(start);
      return;
    }
    const match = compileQuery(query, meta, spans);
    expect(match ? [...findPlaces(match, spans)] : []).toEqual(ids);
  });
});

describe("statistics of a selection", () => {
  it.each(cases.statistics)("$start to $end on rows $rows", ({ start, end, rows, expected }) => {
    const { kinds: found, start: _, end: __, ...sums } = computeStatistics(spans, idle, start, end, rows);
    const byName = found.map((one) => [
      kinds.find((kind) => kind.code === one.kind)!.name,
      [one.count, one.sum_ns],
    ]);
    expect({ ...sums, kinds: Object.fromEntries(byName) }).toEqual(expected);
  });
});
