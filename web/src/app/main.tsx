/** Start: find the data, show them, and keep the address in step with what is shown. */

import { effect } from "@preact/signals";
import { render } from "preact";
import { fromHash, toHash } from "../layout/hash";
import { restore, shownOf } from "../layout/shown";
import { Viewer } from "../layout/viewer";
import { EmbeddedSource, hasData, openPage } from "../model/embedded";
import { LANGUAGE, learn, ofData, t } from "../model/language";
import type { Meta } from "../model/meta";
import { openServer } from "../model/server";
import type { Source } from "../model/source";
import { App } from "./app";
import { download, fileName } from "./save";
import { pageWithNotes, savedNotes } from "./save_page";
import { applyTheme, darkSystem } from "./theme";
import "./viewer.css";

const HASH_DELAY_MS = 300;

declare global {
  interface Window {
    /** For tests and for the browser's console. */
    stagescopeViewer?: Viewer;
  }
}

async function start(): Promise<void> {
  const place = document.getElementById("viewer")!;
  document.documentElement.lang = LANGUAGE === "zh" ? "zh-CN" : "en";
  place.textContent = t("Reading the run …");
  applyTheme(fromHash(location.hash).theme);
  try {
    const source = hasData(document) ? await openPage(document) : await openServer();
    await show(source, await source.meta(), place);
  } catch (problem) {
    fail(place, problem);
  }
}

/** What has to end before another run is shown. */
let end = new AbortController();

async function show(source: Source, meta: Meta, place: HTMLElement, hash = location.hash): Promise<void> {
  const viewer = new Viewer(meta, source);
  const isOwn = hasData(document) && source instanceof EmbeddedSource && source.isOf(document);
  if (isOwn) viewer.notes.begin(savedNotes(document));
  await restore(viewer, fromHash(hash));
  end.abort();
  end = new AbortController();
  window.stagescopeViewer = viewer;
  learn(meta.translations);
  document.title = ofData(meta.document_title ?? meta.title);
  const write = keepAddress(viewer, end.signal);
  const copyLink = (): void => {
    write();
    void copy(location.href).then((ok) =>
      viewer.notify(ok ? t("the link is on the clipboard") : t("the address bar has the link")),
    );
  };
  const reload = (): void => {
    // A span has another number in other data.
    void viewer.select(null);
    write();
    location.reload();
  };
  const switchLanguage = (): void => {
    const words = new URLSearchParams(toHash(shownOf(viewer)));
    words.set("lang", LANGUAGE === "en" ? "zh" : "en");
    history.replaceState(null, "", `#${words}`);
    location.reload();
  };
  followTheme(viewer, end.signal);
  place.textContent = "";
  render(
    <App
      key={++shownCount}
      viewer={viewer}
      chunkCount={chunkCount(source, meta)}
      copyLink={copyLink}
      copy={copy}
      savePage={isOwn ? () => savePage(viewer) : null}
      reload={reload}
      switchLanguage={switchLanguage}
      open={async (other) => show(other, await other.meta(), place, "")}
    />,
    place,
  );
}
let shownCount = 0;

function savePage(viewer: Viewer): void {
  const page = pageWithNotes(document, viewer.notes.all.peek());
  const name = `${fileName(viewer.meta.document_title ?? viewer.meta.title)}.html`;
  download(new Blob([page], { type: "text/html" }), name);
  viewer.notify(t`saved ${name}`);
}

/** Keep the address in step with what is shown, and the other way round; return a function that writes it at once. */
function keepAddress(viewer: Viewer, signal: AbortSignal): () => void {
  let written = "";
  let timer = 0;
  const write = (): void => {
    written = toHash(shownOf(viewer));
    if (written !== location.hash.slice(1)) history.replaceState(null, "", `#${written}`);
  };
  const stop = effect(() => {
    shownOf(viewer);
    clearTimeout(timer);
    timer = window.setTimeout(write, HASH_DELAY_MS);
  });
  signal.addEventListener("abort", () => {
    stop();
    clearTimeout(timer);
  });
  const follow = (): void => {
    if (location.hash.slice(1) !== written) void restore(viewer, fromHash(location.hash));
  };
  window.addEventListener("hashchange", follow, { signal });
  return write;
}

function followTheme(viewer: Viewer, signal: AbortSignal): void {
  const stop = effect(() => applyTheme(viewer.display.theme.value));
  signal.addEventListener("abort", stop);
  const change = (): void => {
    applyTheme(viewer.display.theme.peek());
    viewer.revision.value += 1;
  };
  darkSystem.addEventListener("change", change, { signal });
  window.addEventListener("beforeprint", () => applyTheme("light"), { signal });
  window.addEventListener("afterprint", () => applyTheme(viewer.display.theme.peek()), { signal });
}

/** Chunks of the rank that has most. */
function chunkCount(source: Source, meta: Meta): number {
  if (source instanceof EmbeddedSource && source.spans.table.has("chunk"))
    return source.spans.table.ints("chunk").reduce((most, chunk) => (chunk >= most ? chunk + 1 : most), 1);
  return meta.ranks.stages.reduce((most, stages) => Math.max(most, stages.length), 1);
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyByField(text); // not allowed here, as in some pages opened from a file
  }
}

/** Copy by the selection of a field, which needs no permission. */
function copyByField(text: string): boolean {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "sr-only";
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}

function fail(place: HTMLElement, problem: unknown): void {
  place.textContent = "";
  const box = document.createElement("div");
  box.className = "failure";
  box.setAttribute("role", "alert");
  const head = document.createElement("h1");
  head.textContent = t("This run cannot be shown");
  const words = document.createElement("p");
  words.textContent = problem instanceof Error ? problem.message : String(problem);
  box.append(head, words);
  place.append(box);
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => void start());
else void start();
