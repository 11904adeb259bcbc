/** The query language of the search box, such as `stage:3 mb:7 kind:B dur>5ms`.
 *
 * docs/viewer.md specifies it ("Query language"). The local server implements it in viewer/tiles/query.py;
 * tests/data/viewer/cases.json holds the cases that both are tested with.
 */

import { t } from "./language";
import { isAction, type Kind, LANES, type Meta } from "./meta";
import type { Spans } from "./spans";
import { parseDuration } from "./time";

export type Match = (place: number) => boolean;

/** An invalid query; the message is for the user. */
export class QueryError extends Error {}

const COLUMNS: Record<string, string> = {
  stage: "stage",
  mb: "microbatch",
  microbatch: "microbatch",
  step: "step",
  chunk: "chunk",
  peer: "peer",
  pair: "pair",
};
const PATTERN = /^\/(.+)\/$/;
const NOT_REGULAR = /\(\?(?:[=!]|<[=!])|\\[1-9]/;
const WORD = /"[^"]*"|\S+/g;
const TERM = /^([a-z-]+)(:|=|>=|<=|>|<)(.+)$/i;

/** Return a predicate of span indices; null for an empty query. */
export function compileQuery(query: string, meta: Meta, spans: Spans): Match | null {
  const words = query.match(WORD) ?? [];
  if (words.length === 0) return null;
  const tests = words.map((word) => compileWord(word, meta, spans));
  if (tests.length === 1) return tests[0]!;
  return (place) => tests.every((test) => test(place));
}

/** Return the places of all matches, in order of time. */
export function findPlaces(match: Match, spans: Spans): Int32Array {
  const places = new Int32Array(spans.count);
  let count = 0;
  for (let i = 0; i < spans.count; i++) if (match(i)) places[count++] = i;
  return places.subarray(0, count);
}

function compileWord(word: string, meta: Meta, spans: Spans): Match {
  const term = TERM.exec(word);
  if (!term) return bareWord(word.replaceAll('"', ""), meta, spans);
  const [, rawName, operator, value] = term as unknown as [string, string, string, string];
  const name = rawName.toLowerCase();
  if (name === "kind") return kindIs(value, meta, spans);
  if (name === "name") return nameHas(value.replaceAll('"', ""), spans);
  if (name === "lane") return laneIs(value, spans);
  if (name === "rank") return rowIs(value, meta.ranks.rank, operator, spans);
  if (name === "machine") return machineIs(value, meta, spans);
  if (name === "dur" || name === "duration") return compare(spans.duration, operator, duration(value));
  if (name === "wait") return compare(spans.table.values("wait_duration"), operator, duration(value));
  if (name === "start") return compare(spans.start, operator, duration(value));
  const column = COLUMNS[name];
  if (column === undefined)
    throw new QueryError(
      t`Unknown field "${rawName}". Fields: kind, stage, mb, step, rank, chunk, lane, name, machine, peer, pair, dur, wait, start.`,
    );
  return numbers(spans.table.ints(column), operator, value);
}

function bareWord(word: string, meta: Meta, spans: Spans): Match {
  const label = /^([A-Za-z])(?:(\d+)\.)?(\d+)$/.exec(word); // F3 or F0.3, the notation of the papers
  const kind = label && meta.kinds.find((one) => one.letter === label[1] && isAction(one));
  if (!kind) {
    const kinds = meta.kinds.filter((one) => one.name === word).map((one) => one.code);
    const named = nameHas(word, spans);
    return kinds.length ? (place) => kinds.includes(spans.kind[place]!) || named(place) : named;
  }
  const microbatch = spans.table.ints("microbatch");
  const stage = spans.table.ints("stage");
  const wantedStage = label![2] === undefined ? -1 : Number(label![2]);
  const wanted = Number(label![3]);
  return (place) =>
    spans.kind[place] === kind.code &&
    microbatch[place] === wanted &&
    (wantedStage < 0 || stage[place] === wantedStage);
}

function kindIs(value: string, meta: Meta, spans: Spans): Match {
  const wanted = new Uint8Array(256);
  for (const part of value.split(",")) {
    const kinds = meta.kinds.filter((kind) => kind.letter === part || isNamed(kind, part));
    if (kinds.length === 0)
      throw new QueryError(
        t`Unknown kind "${part}". Kinds: ${meta.kinds.map((kind) => `${kind.letter} ${kind.name}`).join(", ")}.`,
      );
    for (const kind of kinds) wanted[kind.code] = 1;
  }
  const { kind } = spans;
  return (place) => wanted[kind[place]!] === 1;
}

function isNamed(kind: Kind, part: string): boolean {
  return part.length > 1 && kind.name.startsWith(part.toLowerCase());
}

/** Names that contain a text, or match a regular expression in slashes, in any case. */
function nameHas(part: string, spans: Spans): Match {
  const pattern = PATTERN.exec(part);
  const expression = pattern && expressionOf(pattern[1]!);
  if (!spans.table.has("name")) return () => false;
  const sought = part.toLowerCase();
  const isHit = (word: string): boolean => expression?.test(word) ?? word.toLowerCase().includes(sought);
  const hit = Uint8Array.from(spans.table.words("name"), (word) => (isHit(word) ? 1 : 0));
  const name = spans.table.ints("name");
  return (place) => name[place]! >= 0 && hit[name[place]!] === 1;
}

/** Throws QueryError for what is no expression, or has what the server's language of expressions does not have. */
function expressionOf(pattern: string): RegExp {
  if (NOT_REGULAR.test(pattern))
    throw new QueryError(t`"/${pattern}/" looks around or refers back, which is not supported.`);
  try {
    return new RegExp(pattern, "i");
  } catch {
    throw new QueryError(t`"/${pattern}/" is not a regular expression.`);
  }
}

function laneIs(value: string, spans: Spans): Match {
  const wanted = LANES.indexOf(value.toLowerCase());
  if (wanted < 0) throw new QueryError(t`Unknown lane "${value}". Lanes: ${LANES.join(", ")}.`);
  const { lane } = spans;
  return (place) => lane[place] === wanted;
}

function rowIs(value: string, ranks: number[], operator: string, spans: Spans): Match {
  const test = numberTest(operator, value);
  const hit = Uint8Array.from(ranks, (rank) => (test(rank) ? 1 : 0));
  return (place) => hit[spans.row[place]!] === 1;
}

function machineIs(value: string, meta: Meta, spans: Spans): Match {
  const hit = Uint8Array.from(meta.ranks.machine, (machine) => (machine?.includes(value) ? 1 : 0));
  return (place) => hit[spans.row[place]!] === 1;
}

function numbers(column: Int32Array, operator: string, value: string): Match {
  if (/^\d+$/.test(value) && (operator === ":" || operator === "=")) {
    const wanted = Number(value);
    return (place) => column[place] === wanted;
  }
  const test = numberTest(operator, value);
  return (place) => column[place]! >= 0 && test(column[place]!);
}

/** Return a test for `3`, `3,5`, `3-7` after a colon, or for one number after > and the like. */
function numberTest(operator: string, value: string): (number: number) => boolean {
  if (operator !== ":" && operator !== "=") {
    if (!/^\d+$/.test(value)) throw new QueryError(t`"${value}" is not an integer.`);
    return comparison(operator, Number(value));
  }
  const parts = value.split(",").map((part) => {
    const range = /^(\d+)(?:-(\d+))?$/.exec(part);
    if (!range) throw new QueryError(t`"${part}" is neither an integer such as 3 nor a range such as 3-7.`);
    return [Number(range[1]), Number(range[2] ?? range[1])] as const;
  });
  return (number) => parts.some(([low, high]) => number >= low && number <= high);
}

function duration(value: string): number {
  const ns = parseDuration(value);
  if (ns === null) throw new QueryError(t`"${value}" is not a duration such as 5ms, 300us or 20ns.`);
  return ns;
}

function compare(column: Float64Array, operator: string, ns: number): Match {
  if (operator === ">") return (place) => column[place]! > ns;
  if (operator === "<") return (place) => column[place]! < ns;
  const test = comparison(operator, ns);
  return (place) => test(column[place]!);
}

function comparison(operator: string, limit: number): (value: number) => boolean {
  if (operator === ">") return (value) => value > limit;
  if (operator === "<") return (value) => value < limit;
  if (operator === ">=") return (value) => value >= limit;
  if (operator === "<=") return (value) => value <= limit;
  return (value) => value === limit;
}
