/** Pages of other runs, chosen or dropped: shown instead of this one, or compared with it. Nothing in them is run. */

import { useEffect, useRef, useState } from "preact/hooks";
import { compareWith } from "../layout/compared";
import type { Viewer } from "../layout/viewer";
import { compareRuns } from "../model/compare";
import { type EmbeddedSource, openPage } from "../model/embedded";
import { ofData, t } from "../model/language";
import { TooManyError } from "../model/source";
import { Dialog } from "../panels/dialogs";
import { TEXTS } from "../panels/texts";

export interface FileInputs {
  open(): void;
  compare(): void;
}

interface OpenedFilesProps {
  inputs: { current: FileInputs | null };
  viewer: Viewer;
  open: (source: EmbeddedSource) => Promise<void>;
}

export function OpenedFiles({ inputs, viewer, open }: OpenedFilesProps) {
  const [dropped, setDropped] = useState<File | null>(null);
  const input = useRef<HTMLInputElement>(null);
  const isToOpen = useRef(false);
  const choosePage = (isOpening: boolean) => (): void => {
    isToOpen.current = isOpening;
    input.current?.click();
  };
  inputs.current = { open: choosePage(true), compare: choosePage(false) };
  useEffect(() => listenToDrops(setDropped), [viewer]);
  const show = (file: File | undefined): void => void showRun(viewer, file, open);
  const compare = (file: File | undefined): void => void compareRun(viewer, file);
  const choose = (act: (file: File) => void) => (): void => {
    setDropped(null);
    if (dropped) act(dropped);
  };
  return (
    <>
      <input
        ref={input}
        type="file"
        accept=".html,text/html"
        hidden
        aria-label={TEXTS.pageOfOtherRun}
        onChange={(event) => {
          const [file] = event.currentTarget.files ?? [];
          event.currentTarget.value = ""; // so that the same file can be chosen again
          (isToOpen.current ? show : compare)(file);
          isToOpen.current = false;
        }}
      />
      {dropped && (
        <Dialog title={TEXTS.openDropped} onClose={() => setDropped(null)}>
          <p>{dropped.name}</p>
          <p class="dialog-buttons">
            <button type="button" autofocus onClick={choose(show)}>
              {TEXTS.showInstead}
            </button>
            <button type="button" onClick={choose(compare)}>
              {TEXTS.compareWithThis}
            </button>
          </p>
        </Dialog>
      )}
    </>
  );
}

/** Call `use` with a file that is dropped anywhere; the browser would leave this page for it. */
function listenToDrops(use: (file: File) => void): () => void {
  const hasFile = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
  const over = (event: DragEvent): void => {
    if (hasFile(event)) event.preventDefault();
  };
  const drop = (event: DragEvent): void => {
    if (!hasFile(event)) return;
    event.preventDefault();
    const [file] = event.dataTransfer!.files;
    if (file) use(file);
  };
  window.addEventListener("dragover", over);
  window.addEventListener("drop", drop);
  return () => {
    window.removeEventListener("dragover", over);
    window.removeEventListener("drop", drop);
  };
}

async function showRun(
  viewer: Viewer,
  file: File | undefined,
  open: (source: EmbeddedSource) => Promise<void>,
): Promise<void> {
  if (!file) return;
  viewer.problem.value = "";
  try {
    await open(await sourceOf(file));
  } catch (problem) {
    viewer.problem.value = TEXTS.notOpened(wordsOf(problem));
  }
}

async function compareRun(viewer: Viewer, file: File | undefined): Promise<void> {
  if (!file) return;
  viewer.problem.value = "";
  try {
    const other = await sourceOf(file);
    const own = viewer.source;
    const spans = await own.allSpans();
    if (own !== viewer.source) throw new Error(TEXTS.changedMeanwhile);
    const comparison = compareRuns([viewer.meta, spans], [await other.meta(), other.spans]);
    compareWith(viewer, comparison);
    viewer.notify(t`compared with ${ofData(comparison.title)}`);
  } catch (problem) {
    const isTooLarge = problem instanceof TooManyError;
    viewer.problem.value = TEXTS.notCompared(isTooLarge ? TEXTS.tooLargeForThat : wordsOf(problem));
  }
}

async function sourceOf(file: File): Promise<EmbeddedSource> {
  // Its style is not applied, but on the local server the browser would report that it must not be.
  const text = (await file.text()).replace(/<style>[^<]*<\/style>/, "");
  return openPage(new DOMParser().parseFromString(text, "text/html"));
}

function wordsOf(problem: unknown): string {
  return problem instanceof Error ? problem.message : String(problem);
}
