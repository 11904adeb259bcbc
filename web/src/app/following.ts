/** Follows a run on the server: new versions take the place of the one shown, and the state of a training is kept. */

import { effect } from "@preact/signals";
import { renewComparison } from "../layout/compared";
import { continues, firstLength, hasView, laterRow, latestView, showsEnd } from "../layout/live";
import { rowsOnScreen } from "../layout/rows";
import { length, type View } from "../layout/view";
import type { Viewer } from "../layout/viewer";
import { learn, ofData, t } from "../model/language";
import type { Meta } from "../model/meta";
import { openServer, ServerSource } from "../model/server";
import { FRESH, type Span, type TileRequest } from "../model/source";
import { type ServerState, type TrendStep, withSteps } from "../model/training";
import { type Results, readResults } from "./results";

/** The server sends something every three seconds. */
const SILENT_MS = 10_000;
const RETRY_MS = [500, 1000, 2000, 4000];
const FORBIDDEN = 403;

/** Start following; the returned function ends it. `use` gets the results of the analysis of each version. */
export function followServer(viewer: Viewer, use: (results: Results) => void): () => void {
  if (!(viewer.source instanceof ServerSource)) return () => {};
  const follower = new Follower(viewer, use);
  follower.connect();
  return () => follower.end();
}

class Follower {
  private stream: EventSource | null = null;
  private silence = 0;
  private retry = 0;
  private failures = 0;
  private isAdvancing = false;
  private isAsking = false;
  private state: ServerState | null = null;
  private isFirst = true;
  private readonly stop: (() => void)[] = [];

  constructor(
    private readonly viewer: Viewer,
    private readonly use: (results: Results) => void,
  ) {
    const onVisible = (): void => (document.hidden ? this.close() : this.connect());
    document.addEventListener("visibilitychange", onVisible);
    this.stop.push(() => document.removeEventListener("visibilitychange", onVisible));
    this.stop.push(effect(() => this.watchView()));
    this.stop.push(effect(() => this.catchUp()));
  }

  end(): void {
    for (const stop of this.stop) stop();
    this.close();
  }

  /** A hidden page has no stream: a browser opens only six connections to one server. */
  connect(): void {
    if (this.stream || document.hidden) return;
    clearTimeout(this.retry);
    const stream = new EventSource("/events");
    this.stream = stream;
    this.listenLonger();
    stream.onmessage = (event) => {
      this.listenLonger();
      this.failures = 0;
      this.take(JSON.parse(event.data as string) as ServerState);
    };
    stream.addEventListener("beat", () => this.listenLonger());
    stream.onerror = () => void this.lose();
  }

  private close(): void {
    this.stream?.close();
    this.stream = null;
    clearTimeout(this.silence);
    clearTimeout(this.retry);
  }

  private listenLonger(): void {
    clearTimeout(this.silence);
    this.silence = window.setTimeout(() => void this.lose(), SILENT_MS);
  }

  /** Note that the connection is lost, and try again. */
  private async lose(): Promise<void> {
    this.close();
    this.setFollowed(false);
    const { connection } = this.viewer.live;
    if (connection.peek() === "connected" || connection.peek() === "none") connection.value = "lost";
    const wait = RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)]!;
    this.retry = window.setTimeout(() => this.connect(), wait);
    connection.value = (await isRefused()) ? "refused" : "lost";
  }

  private setFollowed(isFollowed: boolean): void {
    const { source } = this.viewer;
    if (source instanceof ServerSource) source.isFollowed = isFollowed;
  }

  private take(state: ServerState): void {
    const { live, freshness } = this.viewer;
    this.state = state;
    live.connection.value = "connected";
    learn(state.training?.translations);
    live.training.value = state.training;
    this.setFollowed(true);
    learn(state.translations);
    const problem = state.problem ? t`The newest files cannot be read: ${ofData(state.problem)}` : "";
    // An offer to reload stays, with its reason: the version shown is gone, or is of another run.
    if (!freshness.peek().hasNewer && freshness.peek().problem !== problem)
      freshness.value = { ...FRESH, problem };
    if (this.isFirst && state.training && !location.hash.includes("t=")) {
      live.isFollowing.value = state.training.outcome !== "is over";
      if (live.isFollowing.peek()) this.showEnd(firstLength(this.viewer.meta));
    }
    this.isFirst = false;
    void this.askTrend();
    this.catchUp();
  }

  private showEnd(long: number): void {
    this.viewer.camera.view.value = latestView(this.viewer.meta, long);
  }

  /** Following ends when the user moves the end of the data out of sight. */
  private watchView(): void {
    const { camera, live, meta } = this.viewer;
    const view = camera.view.value;
    if (live.isFollowing.peek() && !showsEnd(view, meta)) {
      live.isFollowing.value = false;
      this.viewer.announce(t("not following"));
    }
  }

  /** Ask for the measured steps that are missing. */
  private async askTrend(): Promise<void> {
    const { trend } = this.viewer.live;
    const known = trend.peek().first + trend.peek().steps.length;
    const measured = this.state?.training?.measured ?? 0;
    if (this.isAsking || measured === known) return;
    this.isAsking = true;
    try {
      // Fewer than known: the server was started again.
      const since = measured < known ? 0 : known;
      const answer = await fetch(`/trend?since=${since}`, { credentials: "same-origin" });
      if (answer.ok) {
        const came = (await answer.json()) as { first: number; steps: TrendStep[] };
        trend.value = measured < known ? came : withSteps(trend.peek(), came);
      }
    } catch {
      // The stream notices a lost connection as well.
    } finally {
      this.isAsking = false;
    }
  }

  /** Show the newest version, unless that would change what a user is looking at. */
  private catchUp(): void {
    const { live, camera, selection } = this.viewer;
    void [live.isFollowing.value, camera.view.value, selection.idle.value];
    if (!this.isAdvancing && this.state && this.state.version !== this.viewer.meta.version)
      void this.advance(this.state.version);
  }

  private async advance(version: string): Promise<void> {
    this.isAdvancing = true;
    try {
      await this.show(version);
    } catch {
      // The version may be gone already; the next one comes with the next event.
    } finally {
      this.isAdvancing = false;
    }
    // What came meanwhile; the view may also have moved to what the newest version lacks.
    if (this.state && this.state.version !== version) this.catchUp();
  }

  private async show(version: string): Promise<void> {
    const { viewer } = this;
    const { live, camera, selection } = viewer;
    const source = await openServer(`/run/${version}/api`);
    const meta = await source.meta();
    if (!continues(viewer.meta, meta)) {
      viewer.freshness.value = { ...viewer.freshness.peek(), hasNewer: true };
      return;
    }
    const by = Number(BigInt(viewer.meta.base_ns) - BigInt(meta.base_ns));
    const wanted = (): View | null =>
      live.isFollowing.peek() ? latestView(meta, length(camera.view.peek())) : null;
    const isHeld = (): boolean =>
      !wanted() && (!hasView(camera.view.peek(), by) || selection.idle.peek() !== null);
    live.isHeld.value = isHeld();
    if (isHeld()) return;
    const selected = selection.selected.peek();
    const [results, id] = await Promise.all([
      readResults(source),
      selected ? source.numberOf(later(viewer.meta, meta, selected, by)) : null,
      source.load(this.request(wanted() ?? moved(camera.view.peek(), by))),
    ]);
    if (isHeld() || selection.selected.peek() !== selected) return;
    source.isFollowed = true;
    const before = viewer.comparison.peek();
    viewer.replace(meta, source, wanted(), id);
    this.use(results);
    void renewComparison(viewer, before);
    history.replaceState(null, "", `/run/${version}/${location.hash}`);
  }

  private request(view: View): TileRequest {
    const { display } = this.viewer;
    const rows = display.rows.peek();
    const { width, height } = display.size.peek();
    const shown = rowsOnScreen({ rows, scroll: display.scroll.peek(), height }).flat();
    return { ...view, rows: shown.map((row) => row.row), ns_per_pixel: length(view) / width };
  }
}

/** A span as a later version has it. */
function later(meta: Meta, of: Meta, span: Span, by: number): Span {
  return { ...span, row: laterRow(meta, of, span.row), start: span.start + by };
}

function moved(view: View, by: number): View {
  return { start: view.start + by, end: view.end + by };
}

/** Whether the server answers, and does not know this page. */
async function isRefused(): Promise<boolean> {
  try {
    return (await fetch("/trend?since=0", { credentials: "same-origin" })).status === FORBIDDEN;
  } catch {
    return false;
  }
}
