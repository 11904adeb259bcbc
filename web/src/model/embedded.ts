/** The data that a page contains. */

import { bytesFromBase64 } from "./base64";
import { DataError, readTable, type Table } from "./columns";
import { type Comparison, compareRuns } from "./compare";
import { IdleIntervals } from "./idle";
import { t } from "./language";
import { findLinks } from "./links";
import { LANES, META_FORMAT, type Meta } from "./meta";
import { compileQuery, findPlaces } from "./query";
import type { Found, HitGroup, Links, Source, Span, Statistics, TileRequest } from "./source";
import { Spans, type Tile } from "./spans";
import { computeStatistics } from "./statistics";

const PREFIX = "stagescope-";
/** Prefix of the names of the second run in a page with a comparison. */
const OTHER = "other-";

/** Whether a page contains data; the page of the local server does not. */
export function hasData(page: Document): boolean {
  return page.getElementById(`${PREFIX}meta`) !== null;
}

/** Return the source of a page. Throws DataError where its data are cut off or damaged. */
export async function openPage(page: Document): Promise<EmbeddedSource> {
  const [meta, spans] = await readRun(page, "");
  return new EmbeddedSource(meta, spans, page);
}

/** Return meta and spans of one of the runs in a page; `before` is the prefix of its names. */
async function readRun(page: Document, before: string): Promise<[Meta, Spans]> {
  const meta = readJson(page, `${before}meta`) as Meta;
  if (meta.format !== META_FORMAT)
    throw new DataError(
      t`This file has data of format ${meta.format}; its viewer reads format ${META_FORMAT}.`,
    );
  const table = await readBlock(page, `${before}spans`);
  if (!table) throw new DataError(t`This file has no ${before}spans: it is cut off. Write it again.`);
  return [meta, new Spans(table)];
}

export class EmbeddedSource implements Source {
  private readonly tables = new Map<string, Promise<Table | null>>();
  private readonly whole: Tile[];
  private idle: Promise<IdleIntervals | null> | null = null;
  private compared: Promise<Comparison> | null = null;

  constructor(
    private readonly known: Meta,
    readonly spans: Spans,
    private readonly page: Document | null = null,
  ) {
    this.whole = [{ spans, start: -Infinity, end: Infinity }];
  }

  meta(): Promise<Meta> {
    return Promise.resolve(this.known);
  }

  /** Whether the data are those of this page, not of another that was opened in it. */
  isOf(page: Document): boolean {
    return this.page === page;
  }

  tiles(_: TileRequest): Tile[] {
    return this.whole;
  }

  kernels(): Promise<null> {
    return Promise.resolve(null);
  }

  loaded(_: TileRequest): Tile[] {
    return this.whole;
  }

  overview(_: TileRequest): Promise<Tile[]> {
    return Promise.resolve(this.whole);
  }

  onChange(): void {}

  onFreshness(): void {}

  lookForNewer(): Promise<boolean> {
    return Promise.resolve(false);
  }

  details(id: number): Promise<Span | null> {
    const place = this.spans.place(id);
    return Promise.resolve(place < 0 ? null : this.spans.span(place));
  }

  async search(query: string): Promise<Found> {
    const match = compileQuery(query, this.known, this.spans);
    const places = match ? findPlaces(match, this.spans) : new Int32Array(0);
    const { start, row, duration, kind } = this.spans;
    places.sort((one, other) => start[one]! - start[other]! || one - other);
    return {
      count: places.length,
      listed: places.length,
      groups: groupsOf(this.spans, places),
      at: (index) => {
        const place = places[index]!;
        return {
          id: this.spans.id(place),
          row: row[place]!,
          start: start[place]!,
          duration: duration[place]!,
          layer: this.spans.layer(place),
          kind: kind[place]!,
        };
      },
    };
  }

  async select(start: number, end: number, rows: number[]): Promise<Statistics> {
    this.idle ??= this.table("idle").then((table) => table && new IdleIntervals(table, this.spans));
    return computeStatistics(this.spans, await this.idle, start, end, rows);
  }

  async links(id: number, whole: boolean): Promise<Links> {
    const place = this.spans.place(id);
    if (place < 0) return { spans: [], links: [] };
    const table = await this.table("links");
    if (!table) return { spans: [this.spans.span(place)], links: [] };
    return findLinks(this.spans, this.known, table, place, whole);
  }

  table(name: string): Promise<Table | null> {
    let table = this.tables.get(name);
    if (!table)
      this.tables.set(name, (table = this.page ? readBlock(this.page, name) : Promise.resolve(null)));
    return table;
  }

  async json(name: string): Promise<unknown> {
    return this.page?.getElementById(PREFIX + name) ? readJson(this.page, name) : null;
  }

  readonly loadsComparison = false;
  readonly isComparedByStep = false;

  isBinned(): boolean {
    return false;
  }

  allSpans(): Promise<Spans> {
    return Promise.resolve(this.spans);
  }

  stepSpans(): Promise<Spans> {
    return Promise.resolve(new Spans(this.spans.table, this.spans));
  }

  async comparison(): Promise<Comparison | null> {
    const { page } = this;
    if (!page || !this.known.sections.includes("comparison")) return null;
    // Once: it moves the steps of the other run to where they are here.
    this.compared ??= readRun(page, OTHER).then((other) => compareRuns([this.known, this.spans], other));
    return this.compared;
  }
}

function groupsOf(spans: Spans, places: Int32Array): HitGroup[] {
  const groups = new Map<number, HitGroup>();
  for (const place of places) {
    const [layer, kind] = [spans.layer(place), spans.kind[place]!];
    const key = LANES.length * kind + layer;
    const group = groups.get(key);
    if (group) group.count++;
    else groups.set(key, { layer, kind, count: 1 });
  }
  return [...groups.values()];
}

function readJson(page: Document, name: string): unknown {
  const block = page.getElementById(PREFIX + name);
  try {
    return JSON.parse(block?.textContent ?? "");
  } catch {
    throw new DataError(
      t`This file is cut off or damaged: its block "${name}" cannot be read. Write it again.`,
    );
  }
}

async function readBlock(page: Document, name: string): Promise<Table | null> {
  const block = page.getElementById(PREFIX + name);
  if (!block) return null;
  const digits = (block.textContent ?? "").trim();
  const length = Number(block.getAttribute("data-length"));
  if (digits.length !== length)
    throw new DataError(
      t`This file is cut off: its block "${name}" has ${digits.length} of ${length} characters. Copy or write it again.`,
    );
  let bytes: Uint8Array<ArrayBuffer>;
  try {
    bytes = bytesFromBase64(digits);
  } catch {
    throw new DataError(t`This file is damaged: its block "${name}" is no base64. Copy or write it again.`);
  }
  return readTable(bytes);
}
