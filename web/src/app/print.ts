/** Printing: the picture is drawn again, as wide as a page of paper, because a canvas does not follow the layout. */

import { batch } from "@preact/signals";
import { options } from "preact";

import type { Viewer } from "../layout/viewer";

/** With the row labels beside it, this fits A4 and Letter in portrait; in landscape, viewer.css enlarges it. */
const WIDTH_PX = 630;
/** The verdict and the account fit below it on one page. */
const MOST_HEIGHT_PX = 260;

/** Call `draw` with the size of paper before printing, and again with the size of the window after it. */
export function listenToPrinting(viewer: Viewer, draw: () => void): () => void {
  const { display } = viewer;
  let before = { size: display.size.peek(), scroll: 0 };
  const start = (): void => {
    if (display.isPrinted.peek()) return;
    before = { size: display.size.peek(), scroll: display.scroll.peek() };
    atOnce(() => {
      batch(() => {
        display.isPrinted.value = true;
        display.scroll.value = 0;
        display.size.value = { width: WIDTH_PX, height: MOST_HEIGHT_PX };
      });
      display.size.value = { width: WIDTH_PX, height: Math.max(display.rows.peek().height, 1) };
    });
    draw();
  };
  const end = (): void => {
    if (!display.isPrinted.peek()) return;
    atOnce(() =>
      batch(() => {
        display.isPrinted.value = false;
        display.size.value = before.size;
        display.scroll.value = before.scroll;
      }),
    );
    draw();
  };
  window.addEventListener("beforeprint", start);
  window.addEventListener("afterprint", end);
  return () => {
    window.removeEventListener("beforeprint", start);
    window.removeEventListener("afterprint", end);
  };
}

/** Render what a change causes before this returns: the page is printed right after the event. */
function atOnce(change: () => void): void {
  const usual = options.debounceRendering;
  options.debounceRendering = (render) => render();
  try {
    change();
  } finally {
    if (usual) options.debounceRendering = usual;
    else delete options.debounceRendering;
  }
}
