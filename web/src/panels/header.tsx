/** Title, search, and the buttons that are wanted most. */

import type { RefObject } from "preact";
import type { Viewer } from "../layout/viewer";
import { hiddenCount } from "../layout/visible";
import { ofData, t } from "../model/language";
import { countText } from "../model/time";
import type { PageActions } from "./commands";
import { IconButton } from "./icons";
import { TEXTS } from "./texts";

interface HeaderProps {
  viewer: Viewer;
  page: PageActions;
  searchBox: RefObject<HTMLInputElement | null>;
}

const HIDDEN_MEANING = t(
  "These matches are in layers or of kinds that are switched off. Going to one switches them on.",
);

export function Header({ viewer, page, searchBox }: HeaderProps) {
  return (
    <header class="header">
      <h1 title={ofData(viewer.meta.document_title ?? viewer.meta.title)}>{ofData(viewer.meta.title)}</h1>
      <Search viewer={viewer} searchBox={searchBox} />
      <div class="buttons" role="toolbar" aria-label={t("Viewer")}>
        <IconButton name="undo" title={t("Undo the last move (Z)")} onClick={() => viewer.camera.undo()} />
        <IconButton name="fit" title={t("Show the whole run (0)")} onClick={() => viewer.camera.fitAll()} />
        <IconButton name="open" title={TEXTS.openRun} onClick={page.openRun} />
        <IconButton name="link" title={t("Copy a link to this view (L)")} onClick={page.copyLink} />
        <IconButton
          name="table"
          title={t("Table of the visible spans (T)")}
          pressed={viewer.display.flags.value.has("table")}
          onClick={() => viewer.display.toggle("table")}
        />
        <IconButton
          name="dark"
          title={t`Theme: ${ofData(viewer.display.theme.value)}`}
          onClick={() =>
            (viewer.display.theme.value =
              viewer.display.theme.value === "dark"
                ? "light"
                : viewer.display.theme.value === "light"
                  ? "auto"
                  : "dark")
          }
        />
        <button
          type="button"
          class="language"
          title={t("Language: English; show the page in Chinese")}
          onClick={page.switchLanguage}
        >
          {t("中文")}
        </button>
        <IconButton
          name="panel"
          title={t("Side panel")}
          pressed={viewer.display.panel.value !== "none"}
          onClick={() => (viewer.display.panel.value = viewer.display.panel.value === "none" ? "" : "none")}
        />
        <button
          type="button"
          class="icon-button"
          title={t("Keys and gestures (?)")}
          aria-label={t("Keys and gestures")}
          onClick={() => (viewer.display.dialog.value = "help")}
        >
          ?
        </button>
      </div>
    </header>
  );
}

function Search({ viewer, searchBox }: { viewer: Viewer; searchBox: RefObject<HTMLInputElement | null> }) {
  const found = viewer.search.found.value;
  const at = viewer.search.foundAt.value;
  const problem = viewer.search.problem.value;
  const count =
    found && (at >= 0 ? t`${countText(at + 1)} of ${countText(found.count)}` : countText(found.count));
  const { flags, hiddenKinds } = viewer.display;
  const hidden = found ? hiddenCount(found, flags.value, hiddenKinds.value) : 0;
  return (
    <div class="search" role="search">
      <input
        ref={searchBox}
        type="search"
        placeholder="stage:3 mb:7 kind:B dur>5ms"
        aria-label={t("Search")}
        spellcheck={false}
        aria-invalid={problem !== ""}
        aria-describedby="search-problem"
        value={viewer.search.query.value}
        onInput={(event) => void viewer.search.run(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") void viewer.nextMatch(event.shiftKey ? -1 : 1);
          if (event.key === "Escape") event.currentTarget.blur();
          event.stopPropagation();
        }}
      />
      <output class="count" title={hidden ? HIDDEN_MEANING : undefined}>
        {count ? `${count}` : ""}
        {hidden > 0 && <span class="hidden-count">{t`, ${countText(hidden)} not shown`}</span>}
      </output>
      <IconButton name="up" title={t("Previous match (Shift+N)")} onClick={() => void viewer.nextMatch(-1)} />
      <IconButton name="down" title={t("Next match (N)")} onClick={() => void viewer.nextMatch(1)} />
      <p id="search-problem" class="problem" role="alert" hidden={problem === ""}>
        {problem}
      </p>
    </div>
  );
}
