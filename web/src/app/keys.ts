/** Keyboard shortcuts: one listener for the page, so they work wherever the focus is, except in input fields. */

import type { Viewer } from "../layout/viewer";
import { commandFor, type PageActions } from "../panels/commands";

const FIELDS = new Set(["INPUT", "SELECT", "TEXTAREA"]);
/** Keys that a focused button or list handles. */
const OWN_KEYS = new Set(["Enter", " ", "Tab"]);

export function listenToKeys(viewer: Viewer, page: PageActions): () => void {
  const onKey = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    if (event.defaultPrevented || event.altKey || event.metaKey || OWN_KEYS.has(event.key)) return;
    if (viewer.display.dialog.peek() !== "") return;
    if (FIELDS.has(target.tagName) && !event.ctrlKey) return;
    if (event.key === "Escape") {
      cancel(viewer);
      return;
    }
    if (/^Arrow|^Page/.test(event.key) && isScrollable(target)) return;
    const command = commandFor(name(event));
    if (!command) return;
    event.preventDefault();
    command.run(viewer, page);
  };
  window.addEventListener("keydown", onKey);
  return () => window.removeEventListener("keydown", onKey);
}

/** Cancel measuring, else the selected range, the filter of idle intervals, or the selected span. */
function cancel(viewer: Viewer): void {
  if (viewer.selection.measuring.peek()) viewer.selection.measuring.value = false;
  else if (viewer.selection.range.peek()) void viewer.selection.setRange(null);
  else if (viewer.display.causeFilter.peek()) viewer.display.causeFilter.value = null;
  else void viewer.select(null);
}

function name(event: KeyboardEvent): string {
  const key = event.key;
  if (event.ctrlKey) return event.shiftKey ? `Ctrl+Shift+${key.toUpperCase()}` : `Ctrl+${key.toLowerCase()}`;
  const isLetter = /^[a-z]$/i.test(key);
  if (isLetter && event.shiftKey) return `Shift+${key.toUpperCase()}`;
  return isLetter ? key.toLowerCase() : key;
}

function isScrollable(target: HTMLElement): boolean {
  return target.closest(".visible-table, .row-scroller, .heat-window, .side") !== null;
}
