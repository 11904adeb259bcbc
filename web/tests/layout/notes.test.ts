import { describe, expect, it } from "vitest";

import {
  MOST_IN_LINK,
  MOST_NOTES,
  MOST_TEXT,
  Notes,
  notesOf,
  noteWord,
  readNotes,
} from "../../src/layout/notes";

const note = (text: string, time = 5) => ({ time, rank: 2, text });

describe("notes", () => {
  it("are in order of time, on one line each, and of bounded length", () => {
    const notes = new Notes();
    expect(notes.add(note("later", 9))).toBe(true);
    expect(notes.add(note("a\nb\u2028c\u0000", 1))).toBe(true);
    expect(notes.add(note("x".repeat(500), 2))).toBe(true);
    expect(notes.all.value.map((one) => one.text)).toEqual(["a b c", "x".repeat(MOST_TEXT), "later"]);
    notes.remove(notes.all.value[1]!);
    expect(notes.all.value).toHaveLength(2);
  });

  it("are not added without a text, nor beyond the limit", () => {
    const notes = new Notes();
    expect(notes.add(note(" \n "))).toBe(false);
    for (let i = 0; i < MOST_NOTES; i++) expect(notes.add(note(`note ${i}`, i))).toBe(true);
    expect(notes.add(note("one more"))).toBe(false);
  });

  it("keep a link short: those that do not fit stay out of it", () => {
    const notes = new Notes();
    for (let i = 0; i < MOST_NOTES; i++) notes.add(note("慢".repeat(MOST_TEXT), i));
    const link = notes.inLink.value.map((one) => encodeURIComponent(noteWord(one))).join("");
    expect(link.length).toBeLessThanOrEqual(MOST_IN_LINK);
    expect(notes.inLink.value.length).toBeGreaterThan(0);
    expect(notes.inLink.value.length).toBeLessThan(MOST_NOTES);
  });

  it("are read from a link, and malformed words are ignored", () => {
    expect(
      readNotes(["7@3~a@b~c", "7@~no rank", "x@1~a", "7@1~", "7~text", `${"9".repeat(30)}@1~a`]),
    ).toEqual([
      { time: 7, rank: 3, text: "a@b~c" },
      { time: 7, rank: null, text: "no rank" },
    ]);
    for (const found of [null, 7, "7@3~a", {}, [7, null, {}]]) expect(notesOf(found)).toEqual([]);
    expect(notesOf(["7@3~a"])).toEqual([{ time: 7, rank: 3, text: "a" }]);
    expect(readNotes(Array(1000).fill("7@3~a"))).toHaveLength(MOST_NOTES);
  });
});
