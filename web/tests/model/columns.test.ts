import { readFileSync } from "node:fs";
import { deflateSync } from "node:zlib";
import { describe, expect, it } from "vitest";

import { DataError, readTable } from "../../src/model/columns";

/** Written by tests/viewer/test_columns.py, which holds the file to the encoder. */
const SAMPLE = new Uint8Array(readFileSync(new URL("../data/columns.bin", import.meta.url)));

describe("a blob of the Python encoder", () => {
  it("gives back times since 1970 exactly", async () => {
    const table = await readTable(SAMPLE);
    const base = table.base("start");
    const times = [...table.relative("start")].map((value) => base + BigInt(value));
    expect(times).toEqual([
      1763600000123456789n,
      1763600000123456790n,
      1763600000123456789n + 2n ** 45n,
      1763600000123456795n,
    ]);
  });

  it("gives back small numbers, nulls, text and doubles", async () => {
    const table = await readTable(SAMPLE);
    expect([...table.ints("stage")]).toEqual([0, -1, 700, 70000]);
    expect([...table.values("bytes")]).toEqual([1, NaN, 2 ** 40, 3]);
    expect([0, 1, 2, 3].map((row) => table.text("name", row))).toEqual([
      "</script>",
      null,
      "ünïcode \u0000",
      "</script>",
    ]);
    expect([...table.values("share")]).toEqual([0.5, NaN, -1e300, 0]);
    expect([...table.byteColumn("kind")]).toEqual([5, 6, 7, 5]);
    expect(table.facts).toEqual({ origin: 3 });
  });

  it("gives back what was set aside because it needs more than four bytes", async () => {
    const many = new Uint8Array(readFileSync(new URL("../data/escapes.bin", import.meta.url)));
    const values = (await readTable(many)).values("wide");
    expect(values[10]).toBe(2 ** 40);
    expect(values[999]).toBe(2 ** 33 + 1);
    expect(values[500]).toBe(500);
  });
});

describe("damaged data", () => {
  it("that are cut off are called so", async () => {
    await expect(readTable(SAMPLE.slice(0, 40))).rejects.toThrow(DataError);
    await expect(readTable(new Uint8Array([1, 2, 3]))).rejects.toThrow("damaged or cut off");
  });

  it("of another format are refused by name", async () => {
    const head = new TextEncoder().encode(JSON.stringify({ format: 9, rows: 0, columns: [] }));
    const bytes = new Uint8Array([head.length, 0, 0, 0, ...head]);
    await expect(readTable(new Uint8Array(deflateSync(bytes)))).rejects.toThrow(
      "format 9; this viewer reads format 1",
    );
  });

  it("name the missing column", async () => {
    const table = await readTable(SAMPLE);
    expect(() => table.ints("absent")).toThrow('no column "absent"');
  });
});
