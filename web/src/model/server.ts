/** The data of the local server: tiles are fetched when they come into view, and cached. */

import { DataError, readTable, type Table } from "./columns";
import { type Comparison, compareRuns } from "./compare";
import { learn, ofData, t } from "./language";
import { META_FORMAT, type Meta, type Step } from "./meta";
import {
  ask,
  BAD_REQUEST,
  bytesOf,
  GoneError,
  jsonOf,
  NOT_FOUND,
  OK,
  SilenceError,
  TOO_MANY,
} from "./requests";
import {
  type Found,
  FRESH,
  type Freshness,
  type Hit,
  type HitGroup,
  type Links,
  type Source,
  type Span,
  type Statistics,
  type TileRequest,
  TooManyError,
} from "./source";
import { Spans, type Tile } from "./spans";
import type { ServerVersion } from "./training";

const MOST_TILES = 96;
const MOST_AT_ONCE = 4;
const MOST_HITS = 5000;
/** The server sends at most as many spans at once. */
const MOST_COMPARED = 1_000_000;

/** Cells are text, also those of numbers, which may exceed 2^53; null: unknown. */
export interface QueryResult {
  columns: { name: string; type: "number" | "text" }[];
  rows: (string | null)[][];
  /** How many there are, of which `rows` are the first. */
  count: number;
}

interface Held {
  tile: Tile | null;
  rows: [number, number];
  level: number;
  used: number;
}

export async function openServer(address = "api"): Promise<ServerSource> {
  const meta = (await ask(`${address}/meta`).then((answer) => answer.json())) as Meta;
  if (meta.format !== META_FORMAT)
    throw new DataError(t`The server has data of format ${meta.format}; this viewer reads ${META_FORMAT}.`);
  return new ServerSource(meta, address);
}

export class ServerSource implements Source {
  /** Whether newer versions are shown as they come. */
  isFollowed = false;
  readonly loadsComparison = true;
  isComparedByStep = false;
  /** All spans, if they had to be loaded. */
  private whole: Tile[] | null = null;
  private other: Meta | null = null;
  private readonly held = new Map<string, Held>();
  private readonly tables = new Map<string, Promise<Table | null>>();
  private waiting: string[] = [];
  private running = 0;
  private clock = 0;
  private changed = (): void => {};
  private freshnessChanged = (_: Freshness): void => {};
  /** Levels with too many spans in some tiles, as the server reported. */
  private readonly tooFine = new Set<string>();
  /** Tiles that were not loaded because the server did not answer. */
  private readonly missed = new Set<string>();
  /** Step thumbnails load one after the other, each after the picture has its tiles. */
  private lastOverview: Promise<unknown> = Promise.resolve();
  private resting: (() => void)[] = [];

  constructor(
    private readonly known: Meta,
    private readonly address: string,
  ) {}

  meta(): Promise<Meta> {
    return Promise.resolve(this.known);
  }

  onChange(changed: () => void): void {
    this.changed = changed;
  }

  onFreshness(changed: (now: Freshness) => void): void {
    this.freshnessChanged = changed;
  }

  tiles(request: TileRequest): Tile[] {
    if (this.whole) return this.whole;
    const keys = this.keys(request, this.level(request));
    this.waiting = keys.filter((key) => !this.held.has(key));
    for (const key of keys) this.held.get(key) && (this.held.get(key)!.used = ++this.clock);
    this.fetchNext();
    return this.ready(request, keys);
  }

  loaded(request: TileRequest): Tile[] {
    if (this.whole) return this.whole;
    return this.ready(request, this.keys(request, this.level(request)));
  }

  overview(request: TileRequest, isWanted: () => boolean): Promise<Tile[] | null> {
    const next = this.lastOverview.then(async () => {
      if (isWanted()) await this.rest();
      return isWanted() ? this.fetchOverview(request) : null;
    });
    this.lastOverview = next.catch(() => null);
    return next;
  }

  async details(id: number): Promise<Span | null> {
    const answer = await this.answer(`details?id=${id}`, NOT_FOUND);
    return answer.ok ? ((await answer.json()) as Span) : null;
  }

  async search(query: string): Promise<Found> {
    const answer = await this.answer(`search?limit=${MOST_HITS}&q=${encodeURIComponent(query)}`);
    const found = (await answer.json()) as {
      count: number;
      ids: number[];
      rows: number[];
      starts: number[];
      durations: number[];
      layers: number[];
      kinds: number[];
      groups: HitGroup[];
    };
    const at = (i: number): Hit => ({
      id: found.ids[i]!,
      row: found.rows[i]!,
      start: found.starts[i]!,
      duration: found.durations[i]!,
      layer: found.layers[i]!,
      kind: found.kinds[i]!,
    });
    return { count: found.count, listed: found.ids.length, groups: found.groups, at };
  }

  async select(start: number, end: number, rows: number[]): Promise<Statistics> {
    const times = `start=${Math.round(start)}&end=${Math.round(end)}`;
    return (await (await this.answer(`select?${times}&rows=${rows.join(",")}`)).json()) as Statistics;
  }

  async links(id: number, whole: boolean): Promise<Links> {
    const answer = await this.answer(`links?id=${id}&whole=${whole ? 1 : 0}`, TOO_MANY);
    if (!answer.ok) throw new TooManyError(t("this step has too many actions to find their links"));
    return (await answer.json()) as Links;
  }

  table(name: string): Promise<Table | null> {
    let table = this.tables.get(name);
    if (!table) this.tables.set(name, (table = this.fetchTable(name)));
    return table;
  }

  async kernels(start: number, end: number, rows: number[]): Promise<Table | null> {
    const times = `start=${Math.floor(start)}&end=${Math.ceil(end)}`;
    const answer = await this.answer(`kernels?${times}&rows=${rows.join(",")}`, TOO_MANY);
    if (!answer.ok) throw new TooManyError(t("zoom in, or choose fewer rows, to see kernels"));
    return readTable(await bytesOf(answer));
  }

  async json(name: string): Promise<unknown> {
    return this.known.sections.includes(name) ? (await this.answer(`section?name=${name}`)).json() : null;
  }

  /** The result of an SQL query. Throws an error whose message is the server's sentence. */
  async sql(query: string): Promise<QueryResult> {
    return jsonOf<QueryResult>(await this.answer(`sql?q=${encodeURIComponent(query)}`, BAD_REQUEST));
  }

  stepSpans(step: Step): Promise<Spans> {
    return this.spansOf(`spans?${during(step)}`);
  }

  /** Once they are there, the picture is drawn from them, as in a page. */
  async allSpans(): Promise<Spans> {
    this.whole ??= [{ spans: await this.spansOf("spans"), start: -Infinity, end: Infinity }];
    this.changed();
    return this.whole[0]!.spans;
  }

  async comparison(step: Step | null): Promise<Comparison | null> {
    if (!this.known.sections.includes("comparison")) return null;
    await this.rest(); // the tiles of the picture come first
    this.other ??= (await (await this.answer("other/meta")).json()) as Meta;
    const { known, other } = this;
    this.isComparedByStep = Math.max(known.span_count, other.span_count) > MOST_COMPARED;
    if (!this.isComparedByStep) {
      const spans = [await this.allSpans(), await this.spansOf("other/spans")] as const;
      return compareRuns([known, spans[0]], [other, spans[1]]);
    }
    if (!step) return null;
    // A step that the other run lacks has no spans there.
    const before = other.steps.find((one) => one.step === step.step) ?? { start: -2, end: -2 };
    const spans = [await this.stepSpans(step), await this.spansOf(`other/spans?${during(before)}`)] as const;
    return compareRuns([known, spans[0]], [other, spans[1]], step.step);
  }

  isBinned(ns_per_pixel: number): boolean {
    const level = this.level({ start: 0, end: 0, rows: [], ns_per_pixel });
    return !this.whole && (level > 0 || [...this.tooFine].some((key) => key.startsWith("0 ")));
  }

  /** The spans that a request returns. Throws TooManyError. */
  private async spansOf(question: string): Promise<Spans> {
    const answer = await this.answer(question, TOO_MANY);
    if (!answer.ok) throw new TooManyError(t("There are too many spans for that."));
    return new Spans(await readTable(await bytesOf(answer)));
  }

  /** Wait until the tiles of a part are loaded. */
  async load(request: TileRequest): Promise<void> {
    this.tiles(request);
    await this.rest();
  }

  /** The number of the span that has the same row, lane, kind and start; null without one. */
  async numberOf(span: { row: number; lane: number; kind: number; start: number }): Promise<number | null> {
    const start = Math.round(span.start);
    const answer = await this.answer(
      `tile?level=0&start=${start}&end=${start + 1}&rows=${span.row}-${span.row + 1}`,
      TOO_MANY,
    );
    if (!answer.ok) return null;
    const spans = new Spans(await readTable(await bytesOf(answer)));
    const [from, to] = spans.track(span.row, span.lane);
    for (let place = from; place < to; place++)
      if (spans.start[place] === start && spans.kind[place] === span.kind) return spans.id(place);
    return null;
  }

  async lookForNewer(): Promise<boolean> {
    try {
      const { version, problem, translations } = await jsonOf<ServerVersion>(await this.answer("version"));
      learn(translations);
      const words = problem ? t`The newest files cannot be read: ${ofData(problem)}` : "";
      this.freshnessChanged({ hasNewer: version !== this.known.version && !this.isFollowed, problem: words });
      this.fetchMissed();
      return true;
    } catch (problem) {
      if (problem instanceof SilenceError) this.freshnessChanged({ ...FRESH, problem: problem.message });
      return true;
    }
  }

  /** The answer to a question; of those that are no good one, only `expected` is returned. Throws DataError. */
  private async answer(question: string, expected = OK): Promise<Response> {
    try {
      return await ask(`${this.address}/${question}`, expected);
    } catch (problem) {
      if (problem instanceof GoneError) this.freshnessChanged({ hasNewer: true, problem: problem.message });
      throw problem;
    }
  }

  private async fetchTable(name: string): Promise<Table | null> {
    if (!this.known.sections.includes(name)) return null;
    return readTable(await bytesOf(await this.answer(`section?name=${name}`)));
  }

  private level(request: TileRequest): number {
    const { levels } = this.known;
    let level = 0;
    while (level + 1 < levels.length && levels[level + 1]!.bin_ns <= request.ns_per_pixel) level++;
    return level;
  }

  private keys(request: TileRequest, wanted: number): string[] {
    const { levels, tile_bins, tile_rows } = this.known;
    const blocks = [...new Set(request.rows.map((row) => Math.floor(row / tile_rows)))];
    const keys: string[] = [];
    for (const block of blocks) {
      let level = wanted;
      while (level + 1 < levels.length && this.tooFine.has(`${level} ${block}`)) level++;
      const long = (levels[level]?.bin_ns ?? 1) * tile_bins;
      const first = Math.floor(Math.max(request.start, 0) / long);
      const last = Math.floor(Math.min(request.end, this.known.end) / long);
      for (let i = first; i <= last && keys.length < MOST_TILES / 2; i++) keys.push(`${level} ${i} ${block}`);
    }
    return keys;
  }

  private ready(request: TileRequest, keys: string[]): Tile[] {
    const ready = keys.map((key) => this.held.get(key)?.tile).filter((tile): tile is Tile => !!tile);
    return ready.length < keys.length ? [...this.standIns(request), ...ready] : ready;
  }

  /** Coarser or finer tiles that are there already, until the right ones have come. */
  private standIns(request: TileRequest): Tile[] {
    const level = this.level(request);
    let best: Held[] = [];
    for (const one of this.held.values()) {
      if (!one.tile || one.level === level || one.tile.end < request.start || one.tile.start > request.end)
        continue;
      if (
        best.length &&
        best[0]!.level !== one.level &&
        Math.abs(best[0]!.level - level) <= Math.abs(one.level - level)
      )
        continue;
      best = best[0]?.level === one.level ? [...best, one] : [one];
    }
    return best.map((one) => one.tile!);
  }

  private fetchNext(): void {
    while (this.running < MOST_AT_ONCE && this.waiting.length) {
      const key = this.waiting.shift()!;
      if (this.held.has(key)) continue;
      const [level, place, block] = key.split(" ").map(Number) as [number, number, number];
      const { levels, tile_bins, tile_rows } = this.known;
      const long = (levels[level]?.bin_ns ?? 1) * tile_bins;
      const rows: [number, number] = [
        block * tile_rows,
        Math.min((block + 1) * tile_rows, this.known.ranks.rank.length),
      ];
      const held: Held = { tile: null, rows, level, used: ++this.clock };
      this.held.set(key, held);
      this.running++;
      void this.fetchTile(held, key, place * long, (place + 1) * long).finally(() => {
        this.running--;
        this.dropOld();
        this.changed();
        this.fetchNext();
        if (!this.isBusy) for (const go of this.resting.splice(0)) go();
      });
    }
  }

  /** Whether tiles of the picture are loading. */
  get isBusy(): boolean {
    return this.running > 0 || this.waiting.length > 0;
  }

  private rest(): Promise<void> {
    return this.isBusy ? new Promise((go) => this.resting.push(go)) : Promise.resolve();
  }

  /** A tile that fails is not requested again: every redraw would repeat the request. */
  private async fetchTile(held: Held, key: string, start: number, end: number): Promise<void> {
    const [first, last] = held.rows;
    const parameters = `level=${held.level}&start=${Math.floor(start)}&end=${Math.ceil(end)}&rows=${first}-${last}`;
    try {
      const answer = await this.answer(`tile?${parameters}`, TOO_MANY);
      if (answer.ok) held.tile = { spans: new Spans(await readTable(await bytesOf(answer))), start, end };
      else {
        this.tooFine.add(`${held.level} ${key.split(" ")[2]}`);
        this.held.delete(key);
      }
    } catch (problem) {
      if (problem instanceof SilenceError) {
        this.missed.add(key);
        this.freshnessChanged({ ...FRESH, problem: problem.message });
      }
    }
  }

  private fetchMissed(): void {
    if (!this.missed.size) return;
    for (const key of this.missed) this.held.delete(key);
    this.missed.clear();
    this.changed();
  }

  private async fetchOverview(request: TileRequest): Promise<Tile[]> {
    const { start, end, rows } = request;
    const times = `start=${Math.floor(start)}&end=${Math.ceil(end)}&rows=${rows.join(",")}`;
    for (let level = this.level(request); level < Math.max(this.known.levels.length, 1); level++) {
      const answer = await this.answer(`tile?level=${level}&${times}`, TOO_MANY);
      if (answer.ok) return [{ spans: new Spans(await readTable(await bytesOf(answer))), start, end }];
    }
    return [];
  }

  private dropOld(): void {
    if (this.held.size <= MOST_TILES) return;
    const oldest = [...this.held].filter(([, one]) => one.tile).sort(([, a], [, b]) => a.used - b.used);
    for (const [key] of oldest.slice(0, this.held.size - MOST_TILES)) this.held.delete(key);
  }
}

function during({ start, end }: { start: number; end: number }): string {
  return `start=${Math.floor(start)}&end=${Math.ceil(end) + 1}`;
}
