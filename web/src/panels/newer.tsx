/** The offer to load newer data of the server; the page never reloads without a click. */

import type { Viewer } from "../layout/viewer";
import { t } from "../model/language";
import type { PageActions } from "./commands";

export function NewerData({ viewer, page }: { viewer: Viewer; page: PageActions }) {
  const { hasNewer, problem } = viewer.freshness.value;
  return (
    <div class="newer" aria-live="polite">
      {problem && <span>{problem}</span>}
      {hasNewer && (
        <button type="button" onClick={() => page.reload()}>
          {t("New data: reload")}
        </button>
      )}
    </div>
  );
}
