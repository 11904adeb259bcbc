/** Says that the server has newer data, and offers them; the page never takes them by itself. */

import type { Viewer } from "../layout/viewer";
import type { PageActions } from "./commands";

export function NewerData({ viewer, page }: { viewer: Viewer; page: PageActions }) {
  const { hasNewer, problem } = viewer.freshness.value;
  return (
    <div class="newer" aria-live="polite">
      {problem && <span>{problem}</span>}
      {hasNewer && (
        <button type="button" onClick={() => page.reload()}>
          New data: reload
        </button>
      )}
    </div>
  );
}
