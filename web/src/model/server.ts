/** The source that the local server is: tiles are fetched when they come into view, and kept for a while. */

import { DataError, readTable, type Table } from "./columns";
import { META_FORMAT, type Meta } from "./meta";
import type { Found, Hit, Links, Selection, Source, Span, TileRequest } from "./source";
import { Spans, type Tile } from "./spans";

const MOST_TILES = 96;
const MOST_AT_ONCE = 4;
const MOST_HITS = 5000;

interface Held {
  tile: Tile | null;
  rows: [number, number];
  level: number;
  used: number;
}

export async function openServer(address = "api"): Promise<ServerSource> {
  const meta = (await ask(`${address}/meta`).then((answer) => answer.json())) as Meta;
  if (meta.format !== META_FORMAT) throw new DataError(`The server has data of format ${meta.format}; this viewer reads ${META_FORMAT}.`);
  return new ServerSource(meta, address);
}

export class ServerSource implements Source {
  private readonly held = new Map<string, Held>();
  private readonly tables = new Map<string, Promise<Table | null>>();
  private waiting: string[] = [];
  private running = 0;
  private clock = 0;
  private changed = (): void => {};
  /** Levels that the server found too fine for some tiles. */
  private readonly tooFine = new Set<string>();

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

  tiles(request: TileRequest): Tile[] {
    const { levels } = this.known;
    let level = 0;
    while (level + 1 < levels.length && levels[level + 1]!.bin_ns <= request.ns_per_pixel) level++;
    const keys = this.keys(request, level);
    this.waiting = keys.filter((key) => !this.held.has(key));
    for (const key of keys) this.held.get(key) && (this.held.get(key)!.used = ++this.clock);
    this.fetchNext();
    const ready = keys.map((key) => this.held.get(key)?.tile).filter((tile): tile is Tile => !!tile);
    return this.waiting.length && ready.length < keys.length ? [...this.standIns(request, level), ...ready] : ready;
  }

  async details(id: number): Promise<Span | null> {
    const answer = await ask(`${this.address}/details?id=${id}`);
    return (await answer.json()) as Span | null;
  }

  async search(query: string): Promise<Found> {
    const answer = await ask(`${this.address}/search?limit=${MOST_HITS}&q=${encodeURIComponent(query)}`);
    const found = (await answer.json()) as { count: number; ids: number[]; rows: number[]; starts: number[]; durations: number[] };
    const at = (i: number): Hit => ({ id: found.ids[i]!, row: found.rows[i]!, start: found.starts[i]!, duration: found.durations[i]! });
    return { count: found.count, listed: found.ids.length, at };
  }

  async select(start: number, end: number, rows: number[]): Promise<Selection> {
    const times = `start=${Math.round(start)}&end=${Math.round(end)}`;
    return (await (await ask(`${this.address}/select?${times}&rows=${rows.join(",")}`)).json()) as Selection;
  }

  async links(id: number, whole: boolean): Promise<Links> {
    return (await (await ask(`${this.address}/links?id=${id}&whole=${whole ? 1 : 0}`)).json()) as Links;
  }

  table(name: string): Promise<Table | null> {
    let table = this.tables.get(name);
    if (!table) this.tables.set(name, (table = this.fetchTable(name)));
    return table;
  }

  async json(name: string): Promise<unknown> {
    return this.known.sections.includes(name) ? (await ask(`${this.address}/section?name=${name}`)).json() : null;
  }

  /** Whether the server has newer data than this page. */
  async isStale(): Promise<boolean> {
    const { version } = (await (await ask(`${this.address}/version`)).json()) as { version: string };
    return version !== this.known.version;
  }

  private async fetchTable(name: string): Promise<Table | null> {
    if (!this.known.sections.includes(name)) return null;
    return readTable(await bytesOf(await ask(`${this.address}/section?name=${name}`)));
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

  /** Coarser or finer tiles that are there already, until the right ones have come. */
  private standIns(request: TileRequest, level: number): Tile[] {
    let best: Held[] = [];
    for (const one of this.held.values()) {
      if (!one.tile || one.level === level || one.tile.end < request.start || one.tile.start > request.end) continue;
      if (best.length && best[0]!.level !== one.level && Math.abs(best[0]!.level - level) <= Math.abs(one.level - level)) continue;
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
      const rows: [number, number] = [block * tile_rows, Math.min((block + 1) * tile_rows, this.known.ranks.rank.length)];
      const held: Held = { tile: null, rows, level, used: ++this.clock };
      this.held.set(key, held);
      this.running++;
      void this.fetchTile(held, key, place * long, (place + 1) * long).finally(() => {
        this.running--;
        this.dropOld();
        this.changed();
        this.fetchNext();
      });
    }
  }

  private async fetchTile(held: Held, key: string, start: number, end: number): Promise<void> {
    const [first, last] = held.rows;
    const question = `level=${held.level}&start=${Math.floor(start)}&end=${Math.ceil(end)}&rows=${first}-${last}`;
    const answer = await fetch(`${this.address}/tile?${question}`);
    if (answer.status === 413) {
      this.tooFine.add(`${held.level} ${key.split(" ")[2]}`);
      this.held.delete(key);
    } else if (answer.ok) held.tile = { spans: new Spans(await readTable(await bytesOf(answer))), start, end };
  }

  private dropOld(): void {
    if (this.held.size <= MOST_TILES) return;
    const oldest = [...this.held].filter(([, one]) => one.tile).sort(([, a], [, b]) => a.used - b.used);
    for (const [key] of oldest.slice(0, this.held.size - MOST_TILES)) this.held.delete(key);
  }
}

async function ask(address: string): Promise<Response> {
  const answer = await fetch(address, { credentials: "same-origin" });
  if (!answer.ok) {
    const words = (await answer.text()).slice(0, 300);
    throw new DataError(`The server answered ${answer.status}${words ? `: ${words}` : ""}.`);
  }
  return answer;
}

async function bytesOf(answer: Response): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await answer.arrayBuffer());
}
