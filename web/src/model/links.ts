/** Which job needs which: the dependencies that every pipeline schedule has (NOTATION: F stage.micro-batch).
 *
 * F(s,m) needs F(s-1,m); the backward (or its input half) of (s,m) needs that of (s+1,m) and F(s,m); the weight half
 * needs the input half. Jobs belong together within one step and one pipeline; where several ranks run the same job
 * (tensor parallelism), those of the same coordinates do.
 */

import { isJob, kindsByCode, type Meta } from "./meta";
import type { Links } from "./source";
import type { Spans } from "./spans";

type Phase = "F" | "B" | "W";

interface Job {
  place: number;
  row: number;
  phase: Phase;
  stage: number;
}

/** Return the jobs linked to a span: its neighbors, or the whole way of its micro-batch. Ids are those of `spans`. */
export function findLinks(spans: Spans, meta: Meta, place: number, whole: boolean): Links {
  const jobs = jobsOfMicrobatch(spans, meta, place);
  const edges = jobs.flatMap((job) => needs(job, jobs, meta).map((other): [number, number] => [other.place, job.place]));
  const kept = whole ? edges : edges.filter(([from, to]) => from === place || to === place);
  const places = new Set([place, ...kept.flat()]);
  return {
    spans: [...places].map((one) => spans.span(one)),
    links: kept.map(([from, to]) => [spans.id(from), spans.id(to)]),
  };
}

function jobsOfMicrobatch(spans: Spans, meta: Meta, place: number): Job[] {
  const kinds = kindsByCode(meta.kinds);
  if (!isJob(kinds[spans.kind[place]!])) return [];
  const step = spans.table.ints("step");
  const stage = spans.table.ints("stage");
  const microbatch = spans.table.ints("microbatch");
  const { pipeline } = meta.ranks;
  const own = pipeline[spans.row[place]!];
  if (microbatch[place]! < 0 || stage[place]! < 0) return [];
  const jobs: Job[] = [];
  for (let i = 0; i < spans.count; i++) {
    if (microbatch[i] !== microbatch[place] || step[i] !== step[place] || stage[i]! < 0) continue;
    const kind = kinds[spans.kind[i]!];
    if (!isJob(kind) || pipeline[spans.row[i]!] !== own) continue;
    jobs.push({ place: i, row: spans.row[i]!, phase: phaseOf(kind!.name), stage: stage[i]! });
  }
  return jobs;
}

function phaseOf(kind: string): Phase {
  if (kind === "forward") return "F";
  return kind === "backward_weight" ? "W" : "B";
}

function needs(job: Job, jobs: Job[], meta: Meta): Job[] {
  const find = (phase: Phase, stage: number): Job[] =>
    nearest(job, jobs.filter((other) => other.phase === phase && other.stage === stage), meta);
  if (job.phase === "F") return find("F", job.stage - 1);
  if (job.phase === "W") return find("B", job.stage);
  const later = find("B", job.stage + 1);
  return later.length ? later : find("F", job.stage);
}

/** Of several ranks with the same job: the own one, else those of the same tensor- and context-parallel place. */
function nearest(job: Job, others: Job[], meta: Meta): Job[] {
  if (others.length <= 1) return others;
  const same = others.filter((other) => other.row === job.row);
  if (same.length) return same;
  const { tp, cp } = meta.ranks;
  const alike = others.filter((other) => tp[other.row] === tp[job.row] && cp[other.row] === cp[job.row]);
  return alike.length ? alike : others;
}
