/** A message that is shown for a few seconds; screen readers get it from the live region of the page. */

import { useEffect } from "preact/hooks";

import type { Viewer } from "../layout/viewer";

const SHOWN_MS = 4000;

export function Toast({ viewer }: { viewer: Viewer }) {
  const toast = viewer.toast.value;
  useEffect(() => {
    if (!toast) return;
    const timer = setTimeout(() => (viewer.toast.value = null), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [viewer, toast]);
  if (!toast) return null;
  return (
    <p class="toast" aria-hidden="true">
      {toast.text.charAt(0).toUpperCase() + toast.text.slice(1)}
    </p>
  );
}
