/** Save the page that is open as a file that carries the notes: the file it came from, with one block more. */

import type { Note } from "../layout/notes";
import { notesOf, noteWord } from "../layout/notes";

const NOTES_ID = "stagescope-notes";
/** Signs that could end a script element, or that JSON and JavaScript read differently. */
const UNSAFE = /[<>&\u2028\u2029]/g;

/** The notes in a page; none where it has none. */
export function savedNotes(page: Document): Note[] {
  try {
    return notesOf(JSON.parse(page.getElementById(NOTES_ID)?.textContent ?? "[]"));
  } catch {
    return [];
  }
}

/** Return the text of the page as it was before the viewer ran, with notes. */
export function pageWithNotes(page: Document, notes: readonly Note[]): string {
  const copy = page.documentElement.cloneNode(true) as HTMLElement;
  copy.removeAttribute("data-theme");
  copy.querySelector("#viewer")!.textContent = "";
  copy.querySelector(`#${NOTES_ID}`)?.remove();
  const block = page.createElement("script");
  block.type = "application/json";
  block.id = NOTES_ID;
  block.textContent = JSON.stringify(notes.map(noteWord)).replace(
    UNSAFE,
    (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
  copy.querySelector("body")!.append(block);
  return `<!doctype html>\n${copy.outerHTML}\n`;
}
