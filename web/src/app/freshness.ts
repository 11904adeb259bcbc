/** Asks now and then whether there are newer data, while somebody looks at the page. */

import type { Viewer } from "../layout/viewer";

const EVERY_MS = 5000;

/** Begin to ask; returns what ends it. Once there are newer data, nothing more is asked: every question makes the server read again. */
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
