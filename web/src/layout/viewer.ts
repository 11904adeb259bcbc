/** The state of the viewer, and everything that can be done to it. No drawing, no page. */

import { batch, computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";

import type { Comparison } from "../model/compare";
import type { Meta, Step } from "../model/meta";
import { QueryError } from "../model/query";
import { FRESH, TooManyError, type Found, type Freshness, type Links, type Selection, type Source, type Span } from "../model/source";
import type { Spans } from "../model/spans";
import { NOTHING_CHOSEN, type IdealPlace, type Theme } from "./hash";
import { findSpan, type Flag } from "./hit";
import { Matchers } from "./matchers";
import { autoPitch, LARGEST_PITCH, placeRows, type RowChoice, type Rows } from "./rows";
import { clamp, fit, hold, length, pan, zoom, type View } from "./view";

const MOST_UNDONE = 100;
const SAME_MOVE_MS = 500;

export type { Flag };
export const FLAGS_AT_FIRST: Flag[] = ["arrows", "waits", "idle"];

export interface Range {
  start: number;
  end: number;
  rows: number[];
}

export class Viewer {
  readonly bounds: View;
  readonly view: Signal<View>;
  readonly scroll = signal(0);
  readonly size = signal({ width: 900, height: 400 });
  readonly rowChoice: Signal<RowChoice> = signal(NOTHING_CHOSEN.rows);
  readonly pitchChoice = signal<number | null>(null);
  readonly flags: Signal<ReadonlySet<Flag>> = signal(new Set(FLAGS_AT_FIRST));
  readonly ideal = signal<IdealPlace>("off");
  readonly theme = signal<Theme>("auto");
  readonly hiddenKinds: Signal<ReadonlySet<number>> = signal(new Set<number>());
  readonly waitFilter: Signal<ReadonlySet<string> | null> = signal(null);
  readonly panel = signal("");
  readonly dialog = signal<"" | "help" | "palette">("");

  readonly hover = signal<Span | null>(null);
  readonly hoverLinks = signal<Links | null>(null);
  readonly selected = signal<Span | null>(null);
  readonly chain = signal<Links | null>(null);
  readonly range = signal<Range | null>(null);
  readonly selection = signal<Selection | null>(null);
  readonly measuring = signal(false);
  readonly query = signal("");
  readonly queryProblem = signal("");
  readonly found = signal<Found | null>(null);
  readonly foundAt = signal(-1);
  readonly comparison = signal<Comparison | null>(null);
  /** Whether it is that with the run which the page brought; layout/compared.ts changes both. */
  readonly isOtherShown = signal(false);
  readonly said = signal("");
  /** What went wrong after the run was opened, in words. */
  readonly problem = signal("");
  /** Whether this is still all there is of the run. */
  readonly freshness: Signal<Freshness> = signal(FRESH);
  /** Changes when tiles or sections have arrived. */
  readonly revision = signal(0);

  readonly rows: ReadonlySignal<Rows>;
  readonly pitch: ReadonlySignal<number>;
  readonly step: ReadonlySignal<Step | null>;
  private readonly undone: View[] = [];
  private lastMove = -Infinity;
  private asked = 0;
  private readonly matchers: Matchers;

  constructor(
    readonly meta: Meta,
    readonly source: Source,
    private readonly now: () => number = () => Date.now(),
  ) {
    this.matchers = new Matchers(meta);
    this.bounds = fit(0, Math.max(meta.end, 1));
    this.view = signal(this.firstView());
    this.pitch = computed(() => {
      const { hidden } = this.rowChoice.value;
      const shown = meta.ranks.rank.length - hidden.length;
      return this.pitchChoice.value ?? autoPitch(shown, this.size.value.height);
    });
    this.rows = computed(() => placeRows(meta, this.rowChoice.value, this.pitch.value));
    this.step = computed(() => this.stepAt((this.view.value.start + this.view.value.end) / 2));
    source.onChange(() => (this.revision.value += 1));
    source.onFreshness((now) => (this.freshness.value = now));
  }

  /** The step of median length if there are several, else everything. */
  firstView(): View {
    const { steps } = this.meta;
    if (steps.length <= 1) return this.bounds;
    const usual = [...steps].sort((a, b) => a.end - a.start - (b.end - b.start))[(steps.length - 1) >> 1]!;
    return hold(fit(usual.start, usual.end), this.bounds);
  }

  /** Show another part. Moves in quick succession are undone as one. */
  move(view: View): void {
    const before = this.view.peek();
    if (view.start === before.start && view.end === before.end) return;
    const time = this.now();
    if (time - this.lastMove > SAME_MOVE_MS) this.undone.push(before);
    if (this.undone.length > MOST_UNDONE) this.undone.shift();
    this.lastMove = time;
    this.view.value = view;
  }

  zoomBy(factor: number, anchor = 0.5): void {
    this.move(zoom(this.view.peek(), factor, anchor, this.bounds));
  }

  panBy(fraction: number): void {
    this.move(pan(this.view.peek(), fraction, this.bounds));
  }

  show(start: number, end: number): void {
    this.lastMove = -Infinity;
    this.move(hold(fit(start, end), this.bounds));
    this.lastMove = -Infinity;
  }

  fitAll(): void {
    this.show(0, this.meta.end);
    this.say("the whole run");
  }

  /** Zoom to what is chosen: the range, the selected span, or the step in view. */
  focusChosen(): void {
    const { range, selected, step } = this;
    const chosen = range.value;
    if (chosen) this.show(chosen.start, chosen.end);
    else if (selected.value) this.showSpan(selected.value, true);
    else if (step.value) this.show(step.value.start, step.value.end);
  }

  undo(): boolean {
    const before = this.undone.pop();
    if (!before) return false;
    this.lastMove = -Infinity;
    this.view.value = before;
    return true;
  }

  goToStep(place: number): void {
    const step = this.meta.steps[clamp(place, 0, this.meta.steps.length - 1)];
    if (!step) return;
    this.show(step.start, step.end);
    this.say(`step ${step.step}`);
  }

  moveStep(by: number): void {
    const at = this.meta.steps.findIndex((step) => step === this.step.peek());
    this.goToStep(at + by);
  }

  stepAt(time: number): Step | null {
    const { steps } = this.meta;
    let nearest: Step | null = null;
    let least = Infinity;
    for (const step of steps) {
      const away = Math.max(step.start - time, time - step.end, 0);
      if (away < least) [nearest, least] = [step, away];
    }
    return nearest;
  }

  setScroll(top: number): void {
    this.scroll.value = clamp(top, 0, this.rows.peek().height - this.size.peek().height);
  }

  /** Scroll so that a row is seen, and move the view if the span is outside it. */
  showSpan(span: { row: number; start: number; duration: number }, isClose = false): void {
    const view = this.view.peek();
    const end = span.start + span.duration;
    if (isClose) this.show(span.start - 2 * span.duration - 1, end + 2 * span.duration + 1);
    else if (span.start < view.start || end > view.end) {
      const middle = (span.start + end) / 2;
      const half = Math.max(length(view), span.duration * 1.2) / 2;
      this.move(hold({ start: middle - half, end: middle + half }, this.bounds));
    }
    const placed = this.rows.peek().placed.find((one) => one.row === span.row);
    const top = this.scroll.peek();
    const { height } = this.size.peek();
    if (placed && (placed.top < top || placed.top + placed.height > top + height))
      this.setScroll(placed.top - height / 2);
  }

  async select(id: number | null, isCentered = false): Promise<void> {
    if (id === null) {
      batch(() => {
        this.selected.value = null;
        this.chain.value = null;
      });
      return;
    }
    const span = await this.answered(this.source.details(id));
    if (!span) return;
    this.selected.value = span;
    if (isCentered) this.showSpan(span);
    this.say(this.sentence(span));
    const chain = await this.answered(this.source.links(id, true));
    if (this.selected.peek()?.id === id) this.chain.value = chain;
  }

  /** What a source answers; null where it cannot, which is said. */
  private async answered<Answer>(asked: Promise<Answer>): Promise<Answer | null> {
    try {
      return await asked;
    } catch (problem) {
      const words = problem instanceof Error ? problem.message : String(problem);
      if (problem instanceof TooManyError) this.say(words);
      else this.problem.value = words;
      return null;
    }
  }

  async hoverOver(span: Span | null): Promise<void> {
    if (span?.id === this.hover.peek()?.id) return;
    this.hover.value = span;
    this.hoverLinks.value = null;
    if (!span) return;
    // Without a word where there is no answer: the pointer goes over many blocks.
    const links = await this.source.links(span.id, false).catch(() => null);
    if (this.hover.peek()?.id === span.id) this.hoverLinks.value = links;
  }

  async setRange(range: Range | null): Promise<void> {
    this.range.value = range;
    if (!range) {
      this.selection.value = null;
      return;
    }
    const selection = await this.answered(this.source.select(range.start, range.end, range.rows));
    if (this.range.peek() === range) this.selection.value = selection;
  }

  /** Measure the selected span's time on all rows, or begin to measure by dragging. */
  measure(): void {
    const span = this.selected.peek();
    if (span && span.duration > 0) {
      const rows = this.rows.peek().placed.map((one) => one.row);
      void this.setRange({ start: span.start, end: span.start + span.duration, rows: rows.sort((a, b) => a - b) });
      return;
    }
    this.measuring.value = !this.measuring.peek();
    this.say(this.measuring.peek() ? "measuring: drag over the picture" : "dragging moves the picture");
  }

  async search(query: string): Promise<void> {
    const ask = ++this.asked;
    batch(() => {
      this.query.value = query;
      this.queryProblem.value = "";
      this.foundAt.value = -1;
    });
    if (!query.trim()) {
      this.found.value = null;
      return;
    }
    try {
      const found = await this.source.search(query);
      if (ask === this.asked) this.found.value = found;
    } catch (problem) {
      if (ask !== this.asked) return;
      this.found.value = null;
      this.queryProblem.value = problem instanceof QueryError ? problem.message : String(problem);
    }
  }

  /** Select the next match, or the previous one. */
  async nextHit(by: number): Promise<void> {
    const found = this.found.peek();
    if (!found || found.listed === 0) return;
    const at = this.foundAt.peek();
    const next = at < 0 ? this.firstHit(found, by) : (at + by + found.listed) % found.listed;
    this.foundAt.value = next;
    await this.select(found.at(next).id, true);
  }

  /** What tells the spans that are being looked for; null: all are. */
  wanted(): ((spans: Spans, place: number) => boolean) | null {
    const query = this.query.peek();
    return query.trim() && this.found.peek() ? this.matchers.of(query) : null;
  }

  /** Move the selection to the neighbor on the row, or to the span at the same time on another row. */
  async moveFocus(by: "left" | "right" | "up" | "down"): Promise<void> {
    const { view, rows } = this;
    const current = this.selected.peek();
    const middle = (view.peek().start + view.peek().end) / 2;
    const placed = rows.peek().placed;
    const at = current ? placed.findIndex((one) => one.row === current.row) : -1;
    if (!current || at < 0) {
      const first = placed.find((one) => one.top >= this.scroll.peek());
      if (first) await this.selectNear(first.row, Math.max(view.peek().start, Math.min(middle, this.meta.end)), 0);
      return;
    }
    if (by === "left") await this.selectBeside(current, -1);
    else if (by === "right") await this.selectBeside(current, 1);
    else {
      const direction = by === "up" ? -1 : 1;
      for (let i = at + direction; i >= 0 && i < placed.length; i += direction)
        if (await this.selectNear(placed[i]!.row, current.start + current.duration / 2, 0)) return;
    }
  }

  toggle(flag: Flag): void {
    const flags = new Set(this.flags.peek());
    if (!flags.delete(flag)) flags.add(flag);
    this.flags.value = flags;
  }

  toggleKind(code: number): void {
    const hidden = new Set(this.hiddenKinds.peek());
    if (!hidden.delete(code)) hidden.add(code);
    this.hiddenKinds.value = hidden;
  }

  pin(row: number): void {
    const { pinned } = this.rowChoice.peek();
    const next = pinned.includes(row) ? pinned.filter((one) => one !== row) : [...pinned, row];
    this.rowChoice.value = { ...this.rowChoice.peek(), pinned: next };
  }

  hide(row: number): void {
    const choice = this.rowChoice.peek();
    this.rowChoice.value = { ...choice, hidden: [...choice.hidden, row] };
  }

  setPitch(pitch: number): void {
    this.pitchChoice.value = clamp(Math.round(pitch), 1, LARGEST_PITCH);
    this.setScroll(this.scroll.peek());
  }

  say(text: string): void {
    this.said.value = text;
  }

  /** One line about a span for those who do not see the picture. */
  sentence(span: Span): string {
    const kind = this.meta.kinds.find((one) => one.code === span.kind);
    const words = [kind?.name.replaceAll("_", " ") ?? "span"];
    if (span.stage !== null) words.push(`stage ${span.stage}`);
    if (span.microbatch !== null) words.push(`micro-batch ${span.microbatch}`);
    words.push(`rank ${this.meta.ranks.rank[span.row]}`);
    return words.join(", ");
  }

  private firstHit(found: Found, by: number): number {
    const view = this.view.peek();
    for (let i = 0; i < found.listed; i++) if (found.at(i).start >= view.start) return by > 0 ? i : (i || found.listed) - 1;
    return by > 0 ? 0 : found.listed - 1;
  }

  private tilesAround(row: number): Spans[] {
    const view = this.view.peek();
    const request = { start: view.start, end: view.end, rows: [row], ns_per_pixel: length(view) / this.size.peek().width };
    return this.source.loaded(request).map((tile) => tile.spans).filter((spans) => !spans.isBinned);
  }

  private async selectBeside(current: Span, by: number): Promise<void> {
    for (const spans of this.tilesAround(current.row)) {
      const place = spans.place(current.id);
      const [from, to] = spans.track(current.row, current.lane);
      for (let next = place + by; place >= 0 && next >= from && next < to; next += by) {
        if (this.hiddenKinds.peek().has(spans.kind[next]!)) continue;
        return this.select(spans.id(next), true);
      }
    }
  }

  private async selectNear(row: number, time: number, lane: number): Promise<boolean> {
    for (const spans of this.tilesAround(row)) {
      const [from, to] = spans.track(row, lane);
      if (from === to) continue;
      let place = spans.at(row, lane, time, 0);
      if (place < 0) place = clamp(spans.firstReaching(time, from, to), from, to - 1);
      await this.select(spans.id(place), true);
      return true;
    }
    return false;
  }

  /** The span drawn at a point: pixels from the left, and the part of the row's height from its top. */
  spanAt(x: number, row: number, part: number): Span | null {
    const { width } = this.size.peek();
    const view = this.view.peek();
    const perPixel = length(view) / width;
    const point = { row, part, time: view.start + x * perPixel, perPixel };
    return findSpan(this.tilesAround(row), point, this.flags.peek(), this.hiddenKinds.peek());
  }
}
