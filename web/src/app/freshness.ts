/** Polls for newer data while the page is visible. */

import type { Viewer } from "../layout/viewer";

const EVERY_MS = 5000;

/** Start polling; the returned function stops it. Polling ends once newer data exist, because each poll may make the server reload. */
export function watchFreshness(viewer: Viewer): () => void {
  let timer = 0;
  let isAsking = false;
  let canCome = true;
  const ask = async (): Promise<void> => {
    clearTimeout(timer);
    if (document.hidden || isAsking || !canCome || viewer.freshness.peek().hasNewer) return;
    isAsking = true;
    canCome = await viewer.source.lookForNewer();
    isAsking = false;
    timer = window.setTimeout(() => void ask(), EVERY_MS);
  };
  const onVisible = (): void => void ask();
  document.addEventListener("visibilitychange", onVisible);
  timer = window.setTimeout(onVisible, EVERY_MS);
  return () => {
    canCome = false;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisible);
  };
}
