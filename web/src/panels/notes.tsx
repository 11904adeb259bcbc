/** Notes: the list in the side panel, and the markers on the axis. */

import { useEffect, useRef, useState } from "preact/hooks";

import { MOST_NOTES, MOST_TEXT, type Note } from "../layout/notes";
import { pixelOf } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import { countText, durationText } from "../model/time";
import type { PageActions } from "./commands";
import { IconButton } from "./icons";
import { TEXTS } from "./texts";

export function NoteList({ viewer, page }: { viewer: Viewer; page: PageActions }) {
  const notes = viewer.notes.all.value;
  const outside = notes.length - viewer.notes.inLink.value.length;
  const [text, setText] = useState("");
  const field = useRef<HTMLInputElement>(null);
  const asked = viewer.display.noteAsked.value;
  useEffect(() => {
    if (asked) field.current?.focus();
  }, [asked]);
  const add = (event: Event): void => {
    event.preventDefault();
    if (!viewer.addNote(text)) viewer.notify(TEXTS.noteNotAdded(String(MOST_NOTES)));
    else setText("");
  };
  return (
    <div class="notes">
      <form onSubmit={add}>
        <input
          ref={field}
          type="text"
          maxLength={MOST_TEXT}
          placeholder={TEXTS.noteHere(placeText(viewer, viewer.placeOfNote()))}
          aria-label={TEXTS.noteText}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") event.currentTarget.blur();
            event.stopPropagation();
          }}
        />
        <button type="submit">{TEXTS.addNote}</button>
      </form>
      <ol>
        {notes.map((note, i) => (
          <li key={`${note.time} ${note.rank} ${note.text} ${i}`}>
            <button type="button" class="link" onClick={() => viewer.showNote(note)}>
              {placeText(viewer, note)}
            </button>
            <IconButton
              name="close"
              title={TEXTS.removeNote(String(i + 1))}
              onClick={() => viewer.notes.remove(note)}
            />
            <bdi>{note.text}</bdi>
          </li>
        ))}
      </ol>
      {outside > 0 && <p class="quiet">{TEXTS.notesOutside(countText(outside))}</p>}
      {notes.length > 0 && page.savePage && (
        <button type="button" onClick={page.savePage}>
          {TEXTS.savePage}
        </button>
      )}
    </div>
  );
}

/** Where a note is: its rank, and its time from the start of its step. */
function placeText(viewer: Viewer, { time, rank }: Omit<Note, "text">): string {
  const { meta } = viewer;
  const step = meta.steps.find((one) => time >= one.start && time <= one.end);
  const at = durationText(time - (step?.start ?? 0), meta.time_unit);
  const where = step ? TEXTS.timeInStep(String(step.step), at) : at;
  return rank === null ? where : `${TEXTS.oneRank(String(rank))} · ${where}`;
}

/** Buttons over the markers that the picture has. */
export function NoteMarkers({ viewer }: { viewer: Viewer }) {
  const { width } = viewer.display.size.value;
  const view = viewer.camera.view.value;
  return (
    <>
      {viewer.notes.all.value.map((note, i) => {
        const at = pixelOf(view, width, note.time);
        if (at < 0 || at > width) return null;
        return (
          <button
            key={`${note.time} ${i}`}
            type="button"
            class="note-marker"
            style={{ left: `${at}px` }}
            title={note.text}
            aria-label={TEXTS.noteNumber(String(i + 1), note.text)}
            onClick={() => viewer.showNote(note)}
          />
        );
      })}
    </>
  );
}
