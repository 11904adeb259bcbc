/** Column blobs (docs/viewer-format.md): inflated as a whole, each column decoded on first use. */

import { t } from "./language";

export const BLOB_FORMAT = 1;
const TWO_32 = 4294967296;

interface ColumnHead {
  name: string;
  type: "u1" | "u2" | "u4" | "u8" | "f64";
  offset: number;
  base?: string;
  nullable?: boolean;
  chained?: boolean;
  follows?: string;
  words?: string[];
  escapes?: number;
  escapes_offset?: number;
}

interface Head {
  format: number;
  rows: number;
  columns: ColumnHead[];
  facts: Record<string, unknown>;
}

/** The data cannot be shown; the message is for the user. */
export class DataError extends Error {}

export async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  if (typeof DecompressionStream === "undefined")
    throw new DataError(
      t(
        "This browser cannot unpack the data (it has no DecompressionStream). Chrome or Edge 80, Firefox 113 and Safari 16.4, or anything newer, can.",
      ),
    );
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  try {
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new DataError(
      t("The data in this file are damaged or cut off: they cannot be unpacked. Write the file again."),
    );
  }
}

export async function readTable(blob: Uint8Array<ArrayBuffer>): Promise<Table> {
  return new Table(await inflate(blob));
}

export class Table {
  readonly rows: number;
  readonly facts: Record<string, unknown>;
  private readonly heads = new Map<string, ColumnHead>();
  private readonly numbers = new Map<string, Float64Array>();
  private readonly based = new Map<string, Float64Array>();
  private readonly integers = new Map<string, Int32Array>();

  constructor(private readonly bytes: Uint8Array) {
    const head = readHead(bytes);
    this.rows = head.rows;
    this.facts = head.facts;
    for (const column of head.columns) this.heads.set(column.name, column);
    this.body = (4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true)) | 0;
  }
  private readonly body: number;

  has(name: string): boolean {
    return this.heads.has(name);
  }

  /** The base of the values of a column. */
  base(name: string): bigint {
    return BigInt(this.head(name).base ?? "0");
  }

  words(name: string): string[] {
    return this.head(name).words ?? [];
  }

  /** Values less their base, as doubles; NaN: null. */
  relative(name: string): Float64Array {
    let values = this.numbers.get(name);
    if (!values) this.numbers.set(name, (values = this.decode(name)));
    return values;
  }

  /** Values as doubles; NaN: null. Exact only up to 2^53. */
  values(name: string): Float64Array {
    const base = Number(this.head(name).base ?? 0);
    if (base === 0) return this.relative(name);
    // Kept: callers that read value by value would otherwise copy the column for each.
    let values = this.based.get(name);
    if (!values) this.based.set(name, (values = this.relative(name).map((value) => value + base)));
    return values;
  }

  /** Small whole numbers; -1: null. */
  ints(name: string): Int32Array {
    let values = this.integers.get(name);
    if (!values) this.integers.set(name, (values = this.decodeInts(name)));
    return values;
  }

  /** A column of bytes without copying; only for columns of one byte without nulls. */
  byteColumn(name: string): Uint8Array {
    const head = this.head(name);
    const base = Number(head.base ?? 0);
    if (head.type === "u1" && !head.nullable) {
      const codes = this.bytes.subarray(this.body + head.offset, this.body + head.offset + this.rows);
      return base === 0 ? codes : codes.map((code) => code + base);
    }
    return Uint8Array.from(this.ints(name));
  }

  text(name: string, row: number): string | null {
    const word = this.ints(name)[row]!;
    return word < 0 ? null : (this.words(name)[word] ?? null);
  }

  private head(name: string): ColumnHead {
    const head = this.heads.get(name);
    if (!head) throw new DataError(t`The data have no column ${JSON.stringify(name)}.`);
    return head;
  }

  private decodeInts(name: string): Int32Array {
    const head = this.head(name);
    if (!head.chained && (head.type === "u1" || head.type === "u2")) {
      const shift = Number(head.base ?? 0) - (head.nullable ? 1 : 0);
      const values = new Int32Array(this.rows);
      const from = this.body + head.offset;
      const { rows, bytes } = this;
      if (head.type === "u1") for (let i = 0; i < rows; i++) values[i] = bytes[from + i]! + shift;
      else
        for (let i = 0; i < rows; i++) values[i] = bytes[from + i]! + bytes[from + rows + i]! * 256 + shift;
      if (head.nullable && shift !== -1) {
        const null_ = shift;
        for (let i = 0; i < rows; i++) if (values[i] === null_) values[i] = -1;
      }
      return values;
    }
    const values = this.values(name);
    const ints = new Int32Array(values.length);
    for (let i = 0; i < ints.length; i++) ints[i] = Number.isNaN(values[i]) ? -1 : values[i]!;
    return ints;
  }

  private decode(name: string): Float64Array {
    const head = this.head(name);
    if (head.type === "f64") return this.doubles(head);
    const codes = this.codes(head);
    if (head.chained) return this.unchain(head, codes);
    if (head.nullable) for (let i = 0; i < codes.length; i++) codes[i] = codes[i] === 0 ? NaN : codes[i]! - 1;
    return codes;
  }

  private doubles(head: ColumnHead): Float64Array {
    const { rows } = this;
    const values = new Float64Array(rows);
    const bytes = new Uint8Array(values.buffer);
    const from = this.body + head.offset;
    for (let plane = 0; plane < 8; plane++)
      for (let i = 0; i < rows; i++) bytes[8 * i + plane] = this.bytes[from + plane * rows + i]!;
    return values;
  }

  private codes(head: ColumnHead): Float64Array {
    const { rows, bytes } = this;
    const width = Number(head.type[1]);
    const from = this.body + head.offset;
    if (from + width * rows > bytes.length) throw new DataError(t("The data are cut off inside a column."));
    const codes = new Float64Array(rows);
    for (let plane = width - 1; plane >= 0; plane--) {
      const at = from + plane * rows;
      for (let i = 0; i < rows; i++) codes[i] = codes[i]! * 256 + bytes[at + i]!;
    }
    this.unescape(head, codes);
    return codes;
  }

  private unescape(head: ColumnHead, codes: Float64Array): void {
    const count = head.escapes ?? 0;
    const view = new DataView(
      this.bytes.buffer,
      this.bytes.byteOffset + this.body + (head.escapes_offset ?? 0),
    );
    const second = Math.ceil(count / 2) * 8;
    for (let i = 0; i < count; i++) {
      const at = second + 8 * i;
      codes[view.getUint32(4 * i, true)] = view.getUint32(at, true) + TWO_32 * view.getUint32(at + 4, true);
    }
  }

  private unchain(head: ColumnHead, codes: Float64Array): Float64Array {
    const follow = head.follows === undefined ? null : this.values(head.follows);
    let value = 0;
    for (let i = 0; i < codes.length; i++) {
      const code = codes[i]!;
      const half = Math.floor(code / 2);
      value += code === 2 * half ? half : -half - 1;
      codes[i] = value;
      if (follow) value += follow[i]!;
    }
    return codes;
  }
}

function readHead(bytes: Uint8Array): Head {
  const size = bytes.length < 4 ? 0 : new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  if (size === 0 || 4 + size > bytes.length)
    throw new DataError(t("The data have no head: the file is cut off."));
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size))) as Head;
  if (head.format !== BLOB_FORMAT)
    throw new DataError(t`The data have format ${head.format}; this viewer reads format ${BLOB_FORMAT}.`);
  return head;
}
