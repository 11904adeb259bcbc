/** Notes at a time, and maybe a rank: they travel with the link, and with the page when it is saved to a file. */

import { computed, type ReadonlySignal, type Signal, signal } from "@preact/signals";

export interface Note {
  /** ns from the base of the run. */
  time: number;
  rank: number | null;
  text: string;
}

export const MOST_NOTES = 50;
export const MOST_TEXT = 200;
/** Characters of all notes in a link: longer addresses do not survive mail and chat. */
export const MOST_IN_LINK = 4000;

export class Notes {
  readonly all: Signal<readonly Note[]> = signal([]);
  /** Notes that a link has, the first ones that fit. */
  readonly inLink: ReadonlySignal<readonly Note[]> = computed(() => fitting(this.all.value));

  /** What a link states; null where it needs no notes, because the page has none either. */
  readonly stated: ReadonlySignal<readonly Note[] | null> = computed(() =>
    this.all.value.length || this.#inPage ? this.inLink.value : null,
  );
  /** Whether the page carries notes, which would be back when it is loaded again. */
  #inPage = false;

  /** Begin with the notes that the page carries. */
  begin(notes: readonly Note[]): void {
    this.#inPage = notes.length > 0;
    this.all.value = notes;
  }

  /** Add a note; false where it is empty or there are too many. */
  add(note: Note): boolean {
    const text = tidy(note.text);
    if (!text || this.all.peek().length >= MOST_NOTES) return false;
    this.all.value = [...this.all.peek(), { ...note, text }].sort((a, b) => a.time - b.time);
    return true;
  }

  remove(note: Note): void {
    this.all.value = this.all.peek().filter((one) => one !== note);
  }

  /** Shift the notes to the times of other data. */
  shift(by: number): void {
    if (by) this.all.value = this.all.peek().map((note) => ({ ...note, time: note.time + by }));
  }
}

/** Return a note as a word of a link: time, rank and text. */
export function noteWord({ time, rank, text }: Note): string {
  return `${Math.round(time)}@${rank ?? ""}~${text}`;
}

/** Return the notes of a link; malformed ones are ignored. */
export function readNotes(words: string[]): Note[] {
  return words.slice(0, MOST_NOTES).flatMap((word) => {
    const match = /^(-?\d{1,18})@(\d{0,9})~(.*)$/s.exec(word);
    const text = tidy(match?.[3] ?? "");
    if (!match || !text) return [];
    return [{ time: Number(match[1]), rank: match[2] ? Number(match[2]) : null, text }];
  });
}

/** Return the notes that a saved page carries; anything else is ignored. */
export function notesOf(found: unknown): Note[] {
  return Array.isArray(found) ? readNotes(found.filter((word) => typeof word === "string")) : [];
}

function fitting(notes: readonly Note[]): readonly Note[] {
  let left = MOST_IN_LINK;
  return notes.filter((note) => {
    left -= encodeURIComponent(noteWord(note)).length;
    return left >= 0;
  });
}

/** One line of at most so many characters, without control characters. */
function tidy(text: string): string {
  return text
    .replace(/[\p{Cc}\p{Zl}\p{Zp}]+/gu, " ")
    .trim()
    .slice(0, MOST_TEXT);
}
