/** The page: header, legend, picture, steps, side panel and dialogs. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { TimelinePainter } from "../draw/timeline";
import { followComparedStep } from "../layout/compared";
import type { Viewer } from "../layout/viewer";
import type { EmbeddedSource } from "../model/embedded";
import { ofData, t } from "../model/language";
import type { Diagnostic, Meta } from "../model/meta";
import type { PageActions } from "../panels/commands";
import { Help, Palette } from "../panels/dialogs";
import { Header } from "../panels/header";
import { Legend } from "../panels/legend";
import { LiveBar } from "../panels/live";
import { Minimap } from "../panels/minimap";
import { NewerData } from "../panels/newer";
import { Side } from "../panels/side";
import { Steps } from "../panels/steps";
import { VisibleTable } from "../panels/table";
import { Toast } from "../panels/toast";
import { Chart } from "./chart";
import { followServer } from "./following";
import { watchFreshness } from "./freshness";
import { followKernels } from "./kernel_windows";
import { listenToKeys } from "./keys";
import { type FileInputs, OpenedFiles } from "./opened_files";
import { NO_RESULTS, type Results, readResults, waitedFor } from "./results";
import { savePicture } from "./save";
import { isDark } from "./theme";

interface AppProps {
  viewer: Viewer;
  chunkCount: number;
  copyLink: () => void;
  /** Copy text; false if the browser does not allow it. */
  copy: (text: string) => Promise<boolean>;
  /** Null where the page carries no data, as on the local server. */
  savePage: (() => void) | null;
  reload: () => void;
  /** Show the page in its other language. */
  switchLanguage: () => void;
  /** Show another run instead. */
  open: (source: EmbeddedSource) => Promise<void>;
}

export function App({
  viewer,
  chunkCount,
  copyLink,
  copy,
  savePage,
  reload,
  switchLanguage,
  open,
}: AppProps) {
  const searchBox = useRef<HTMLInputElement>(null);
  const files = useRef<FileInputs>(null);
  const [results, setResults] = useState<Results>(NO_RESULTS);
  const kinds = viewer.meta.kinds.map((kind) => kind.code).join();
  const chunks = viewer.meta.ranks.stages.reduce((most, own) => Math.max(most, own.length), chunkCount);
  const painter = useMemo(() => new TimelinePainter(viewer, chunks), [viewer, chunks, kinds]);
  const page: PageActions = {
    copyLink,
    focusSearch: () => searchBox.current?.select(),
    openComparison: () => files.current?.compare(),
    openRun: () => files.current?.open(),
    savePage,
    print: () => window.print(),
    save: (format) => void savePicture(viewer, painter, results.layers, chunks, format),
    reload,
    switchLanguage,
  };
  useEffect(() => listenToKeys(viewer, page), [viewer]);
  useEffect(() => watchFreshness(viewer), [viewer]);
  useEffect(() => followKernels(viewer), [viewer]);
  useEffect(() => followComparedStep(viewer), [viewer]);
  const use = (found: Results): void => {
    if (!viewer.meta.kernels) viewer.kernels.value = found.layers.kernels;
    viewer.idle.value = found.layers.idle;
    viewer.hasIdeal.value = found.layers.ideal !== null;
    setResults(found);
  };
  useEffect(() => followServer(viewer, use), [viewer]);
  useEffect(() => {
    // Not before the first picture is on the screen: a frame for it, and one in which it is shown.
    let timer = 0;
    const frame = requestAnimationFrame(() => {
      timer = window.setTimeout(() => {
        const { source } = viewer;
        const first = (found: Results): void => {
          if (source !== viewer.source) return;
          use(found);
          void viewer.wantInterval(found.layers.idle && viewer.wantedInterval.peek());
        };
        readResults(source).then(first, (problem: unknown) => {
          viewer.problem.value = t`The analysis of this run cannot be shown. ${wordsOf(problem)}`;
        });
      }, 0);
    });
    return () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
    };
  }, [viewer]);
  const isOpen = viewer.display.panel.value !== "none";
  return (
    <div class={isOpen ? "app" : "app closed"}>
      <Header viewer={viewer} page={page} searchBox={searchBox} />
      <div class="notices">
        <LiveBar viewer={viewer} />
        <NewerData viewer={viewer} page={page} />
        <Warning viewer={viewer} />
      </div>
      <main class="main">
        <Legend viewer={viewer} chunkCount={chunks} />
        <Chart viewer={viewer} painter={painter} layers={results.layers} />
        {viewer.display.flags.value.has("minimap") && (
          <Minimap viewer={viewer} chunkCount={chunks} isDark={isDark(viewer.display.theme.value)} />
        )}
        <Steps viewer={viewer} isDark={isDark(viewer.display.theme.value)} />
        {viewer.display.flags.value.has("table") && (
          <VisibleTable viewer={viewer} ideal={results.layers.ideal} copy={copy} />
        )}
      </main>
      <Side
        viewer={viewer}
        page={page}
        isDark={isDark(viewer.display.theme.value)}
        changes={results.changes}
        verdict={results.verdict}
        understood={results.understood}
        analyzed={results.analyzed}
        ledger={results.ledger}
        slackOf={(span) => results.slack?.of(span.id) ?? null}
        waitedFor={(span) => waitedFor(viewer.meta, results.layers.idle, span)}
      />
      {viewer.display.dialog.value === "help" && <Help viewer={viewer} />}
      {viewer.display.dialog.value === "palette" && <Palette viewer={viewer} page={page} />}
      <Toast viewer={viewer} />
      <p class="sr-only" role="status" aria-live="polite">
        {viewer.announcement.value}
      </p>
      <OpenedFiles inputs={files} viewer={viewer} open={open} />
    </div>
  );
}

/** Diagnostics about the page as a whole, shown above the picture whatever their severity. */
const NOTICE_CODES = new Set(["viewer.analysis_omitted"]);

/** Notices that a reader needs in order to judge the picture. */
function Warning({ viewer }: { viewer: Viewer }) {
  const own = errorsOf(viewer.meta);
  const others = errorsOf(viewer.comparison.value?.meta);
  const problem = viewer.problem.value;
  const notices = viewer.meta.diagnostics.filter((one) => NOTICE_CODES.has(one.code));
  if (!own[0] && !others[0] && !problem && notices.length === 0) return null;
  return (
    <div class="warning">
      {problem && <p role="alert">{problem}</p>}
      {notices.map((notice) => (
        <p role="note" key={notice.code}>
          <b>{t("Not analyzed.")}</b> {ofData(notice.message)}.
        </p>
      ))}
      <Missing words={t("Data are missing.")} errors={own} where={t(", see the notes on the data")} />
      <Missing words={t("Data of the other run are missing.")} errors={others} where="" />
    </div>
  );
}

function errorsOf(meta: Meta | undefined): Diagnostic[] {
  return meta?.diagnostics.filter((one) => one.severity === "error") ?? [];
}

function Missing({ words, errors, where }: { words: string; errors: Diagnostic[]; where: string }) {
  const first = errors[0];
  if (!first) return null;
  return (
    <p role="note">
      <b>{words}</b> {first.rank === null ? "" : `${t`rank ${first.rank}`}: `}
      {ofData(first.message)}
      {errors.length > 1 ? ` ${t`And ${errors.length - 1} more${where}.`}` : ""}
    </p>
  );
}

function wordsOf(problem: unknown): string {
  return problem instanceof Error ? problem.message : String(problem);
}
