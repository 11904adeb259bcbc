/** Column blobs written by hand, for tests: the encoder proper is src/stagescope/viewer/columns.py. */

import { Table } from "../src/model/columns";
import { EmbeddedSource } from "../src/model/embedded";
import type { Meta } from "../src/model/meta";
import { Spans } from "../src/model/spans";

type Values = (number | null)[];

/** A table of plain columns of doubles (nulls are NaN), which every reader of columns accepts. */
export function tableOf(columns: Record<string, Values>, facts: Record<string, unknown> = {}): Table {
  return new Table(bytesOf(columns, facts));
}

/** The same as a blob that is inflated already. */
export function bytesOf(
  columns: Record<string, Values>,
  facts: Record<string, unknown> = {},
): Uint8Array<ArrayBuffer> {
  const rows = Object.values(columns)[0]!.length;
  const bodies: Uint8Array[] = [];
  let offset = 0;
  const heads = Object.entries(columns).map(([name, values]) => {
    const bytes = new Uint8Array(Float64Array.from(values, (value) => value ?? NaN).buffer);
    const planes = new Uint8Array(8 * rows);
    for (let i = 0; i < rows; i++)
      for (let plane = 0; plane < 8; plane++) planes[plane * rows + i] = bytes[8 * i + plane]!;
    bodies.push(planes);
    const head = { name, type: "f64", offset };
    offset += planes.length;
    return head;
  });
  const text = new TextEncoder().encode(JSON.stringify({ format: 1, rows, columns: heads, facts }));
  const padded = Math.ceil((text.length + 4) / 8) * 8 - 4;
  const all = new Uint8Array(4 + padded + offset).fill(32);
  new DataView(all.buffer).setUint32(0, padded, true);
  all.set(text, 4);
  let at = 4 + padded;
  for (const body of bodies) {
    all.set(body, at);
    at += body.length;
  }
  return all;
}

export interface Drawn {
  row: number;
  kind: string;
  stage: number;
  microbatch: number;
  start: number;
  duration: number;
  step?: number;
}

const KINDS: [string, string, number][] = [
  ["forward", "F", 1],
  ["backward", "B", 2],
  ["backward_input", "I", 3],
  ["backward_weight", "W", 4],
];

/** Spans from a drawing: a line per row, `F0` micro-batch 0, `-` goes on, `.` is idle; a slot is 10 ns. */
export function draw(text: string): Drawn[] {
  const drawn: Drawn[] = [];
  text
    .trim()
    .split("\n")
    .forEach((line, row) => {
      line
        .trim()
        .split(/\s+/)
        .forEach((word, slot) => {
          if (word === ".") return;
          if (word === "-") drawn[drawn.length - 1]!.duration += 10;
          else {
            const kind = KINDS.find(([, letter]) => letter === word[0])![0];
            drawn.push({
              row,
              kind,
              stage: row,
              microbatch: Number(word.slice(1)),
              start: 10 * slot,
              duration: 10,
            });
          }
        });
    });
  return drawn;
}

export function spansOf(drawn: Drawn[], lane = 0): Spans {
  const code = (kind: string): number => KINDS.find(([name]) => name === kind)![2];
  const column = (of: (one: Drawn) => number | null): Values => drawn.map(of);
  const none = column(() => null);
  return new Spans(
    tableOf({
      row: column((one) => one.row),
      kind: column((one) => code(one.kind)),
      lane: column(() => lane),
      step: column((one) => one.step ?? 0),
      stage: column((one) => one.stage),
      chunk: column(() => 0),
      microbatch: column((one) => one.microbatch),
      pair: none,
      peer: none,
      bytes: none,
      start: column((one) => one.start),
      duration: column((one) => one.duration),
      wait: none,
      wait_duration: none,
      sublane: column(() => 0),
      sublanes: column(() => 1),
    }),
  );
}

export function metaOf(drawn: Drawn[], rows: number): Meta {
  const filled = <T>(value: T): T[] => Array.from({ length: rows }, () => value);
  const end = Math.max(0, ...drawn.map((one) => one.start + one.duration));
  return {
    format: 1,
    title: "drawn",
    generator: "test",
    base_ns: "1700000000000000001",
    end,
    time_unit: "ns",
    span_count: drawn.length,
    kinds: KINDS.map(([name, letter, code]) => ({
      name,
      letter,
      code,
      color: "#0072b2",
      texture: "plain",
      lane: "compute",
      meaning: "",
    })),
    waits: [],
    ranks: {
      rank: Array.from({ length: rows }, (_, i) => i),
      machine: filled<string | null>("m0"),
      host: filled<string | null>(null),
      device: filled<string | null>(null),
      pp: filled<number | null>(null),
      dp: filled<number | null>(null),
      tp: filled<number | null>(null),
      cp: filled<number | null>(null),
      ep: filled<number | null>(null),
      pipeline: filled<number | null>(0),
      stages: Array.from({ length: rows }, (_, i) => [i]),
    },
    steps: [
      { step: 0, start: 0, end, window_ns: null, bubble_fraction: null, in_totals: true, excess_ns: null },
    ],
    clocks: [],
    diagnostics: [],
    sections: [],
    levels: [],
    tile_bins: 0,
    tile_rows: 0,
  };
}

export function sourceOf(text: string, lane = 0): { source: EmbeddedSource; meta: Meta; spans: Spans } {
  const drawn = draw(text);
  const spans = spansOf(drawn, lane);
  const meta = metaOf(drawn, text.trim().split("\n").length);
  return { source: new EmbeddedSource(meta, spans), meta, spans };
}
