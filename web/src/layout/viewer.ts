/** The state of the page: a signal for each thing that a panel or the picture depends on, grouped by part. */

import { batch, type Signal, signal } from "@preact/signals";
import type { Comparison } from "../model/compare";
import type { IdleIntervals } from "../model/idle";
import type { Kernel, Kernels } from "../model/kernels";
import { ofData, t } from "../model/language";
import type { Meta } from "../model/meta";
import { FRESH, type Freshness, type Source, type Span } from "../model/source";
import type { Spans } from "../model/spans";
import { durationText } from "../model/time";
import { divideRow, type Lanes, showsKernels } from "./bands";
import { Camera } from "./camera";
import { Display } from "./display";
import { type Flag, findSpan, LAYER_NAMES } from "./hit";
import { Live, laterRow } from "./live";
import { type Note, Notes } from "./notes";
import { rowsOnScreen } from "./rows";
import { Search } from "./search";
import { Selection } from "./selection";
import { clamp, length, type View } from "./view";
import { makeVisible } from "./visible";

/** A kernel is hit from so far beside it. */
const KERNEL_SLOP_PX = 2;

export class Viewer {
  private readonly data: Signal<{ meta: Meta; source: Source }>;
  /** The training that is followed, if one is. */
  readonly live = new Live();
  readonly camera: Camera;
  readonly display: Display;
  readonly search: Search;
  readonly selection: Selection;
  readonly notes = new Notes();

  /** Whether the analysis has an ideal schedule, once it is read. */
  readonly hasIdeal = signal(false);
  /** Kernels, once they are read; null without. */
  readonly kernels: Signal<Kernels | null> = signal(null);
  /** Idle intervals, once they are read; null without. */
  readonly idle: Signal<IdleIntervals | null> = signal(null);
  /** The interval that a link selects, until the intervals are read. */
  readonly wantedInterval: Signal<number | null> = signal(null);
  readonly comparison = signal<Comparison | null>(null);
  /** Whether `comparison` is with the run that the page carries; layout/compared.ts changes both. */
  readonly isOtherShown = signal(false);
  /** How many comparisons with that run are being made: while a step is, another one can come into view. */
  readonly comparing = signal(0);
  /** Text for screen readers. */
  readonly announcement = signal("");
  /** The message that is shown for a few seconds; an object, so that the same text is shown again. */
  readonly toast: Signal<{ text: string } | null> = signal(null);
  /** The last error after the run was opened; empty without. */
  readonly problem = signal("");
  readonly freshness: Signal<Freshness> = signal(FRESH);
  /** Increases when tiles or sections have arrived. */
  readonly revision = signal(0);

  constructor(meta: Meta, source: Source, now: () => number = () => Date.now()) {
    this.data = signal({ meta, source });
    this.camera = new Camera(
      () => this.meta,
      (text) => this.announce(text),
      now,
    );
    this.display = new Display(() => this.meta);
    this.search = new Search(
      () => this.meta,
      () => this.source,
    );
    this.selection = new Selection(() => this.source, {
      notify: (text) => this.notify(text),
      fail: (text) => {
        this.problem.value = text;
      },
    });
    this.listen(source);
  }

  /** The run that is shown; of a training that is followed, its newest version. */
  get meta(): Meta {
    return this.data.value.meta;
  }

  get source(): Source {
    return this.data.value.source;
  }

  /**
   * Show a later version of the run: what was seen stays where it is, with the same span selected, which has the number
   * `selected` there (null: it is gone, or none was). `view` is the time range to show, else the same as before.
   */
  replace(meta: Meta, source: Source, view: View | null, selected: number | null): void {
    const by = Number(BigInt(this.meta.base_ns) - BigInt(meta.base_ns));
    const { selection, camera } = this;
    const before = camera.view.peek();
    const row = (own: number): number => laterRow(this.meta, meta, own);
    const range = selection.range.peek();
    const choice = this.display.rowChoice.peek();
    const places = { pinned: choice.pinned.map(row), hidden: choice.hidden.map(row) };
    const moved = range && { start: range.start + by, end: range.end + by, rows: range.rows.map(row) };
    batch(() => {
      this.data.value = { meta, source };
      camera.shift(by);
      camera.view.value = view ?? { start: before.start + by, end: before.end + by };
      if (moved) selection.range.value = moved;
      if (choice.pinned.length + choice.hidden.length)
        this.display.rowChoice.value = { ...choice, ...places };
      this.notes.shift(by);
      // Its changes belong to the numbers of the spans; compared.ts renews it.
      this.comparison.value = null;
      selection.forgetOthers();
      this.freshness.value = FRESH;
    });
    this.listen(source);
    if (selection.selected.peek()) void this.select(selected);
    const query = this.search.query.peek();
    if (query) void this.search.run(query);
  }

  private listen(source: Source): void {
    source.onChange(() => {
      if (source === this.source) this.revision.value += 1;
    });
    source.onFreshness((freshness) => {
      if (source === this.source) this.freshness.value = freshness;
    });
  }

  /** Read text out to users of screen readers. */
  announce(text: string): void {
    this.announcement.value = text;
  }

  /** Show text for a few seconds, and read it out. */
  notify(text: string): void {
    this.announce(text);
    this.toast.value = { text };
  }

  /** One line about a span, also for screen readers. */
  sentence(span: Span): string {
    const words = [this.kindName(span.kind)];
    if (span.stage !== null) words.push(t`stage ${span.stage}`);
    if (span.microbatch !== null) words.push(t`micro-batch ${span.microbatch}`);
    words.push(t`rank ${this.meta.ranks.rank[span.row]!}`);
    return words.join(", ");
  }

  kindName(code: number): string {
    return ofData(this.meta.kinds.find((one) => one.code === code)?.name.replaceAll("_", " ") ?? "span");
  }

  /** Switch a layer on or off, and state it. */
  toggle(flag: Flag): void {
    this.display.toggle(flag);
    const name = LAYER_NAMES[flag];
    this.notify(this.display.flags.peek().has(flag) ? t`${name} on` : t`${name} off`);
  }

  /** Zoom to the selected range, else to the selected span, else to the step in view. */
  focusSelection(): void {
    const range = this.selection.range.peek();
    const selected = this.selection.selected.peek();
    const step = this.camera.step.peek();
    if (range) this.camera.show(range.start, range.end);
    else if (selected) this.showSpan(selected, true);
    else if (this.selection.idle.peek() !== null) this.showIdle(this.selection.idle.peek()!, true);
    else if (step) this.camera.show(step.start, step.end);
  }

  /** Bring a span onto the screen; `isClose` zooms to it. */
  showSpan(span: { row: number; start: number; duration: number }, isClose = false): void {
    const end = span.start + span.duration;
    if (isClose) this.camera.show(span.start - 2 * span.duration - 1, end + 2 * span.duration + 1);
    else this.camera.reveal(span.start, end);
    this.display.revealRow(span.row);
  }

  /** Go to where something is seen: a step, the row of a rank, and a span, as far as they are known. */
  async showPlace(place: { step: number | null; rank: number | null; span: number | null }): Promise<void> {
    const step = this.meta.steps.findIndex((one) => one.step === place.step);
    if (step >= 0) this.camera.goToStep(step);
    const row = place.rank === null ? -1 : this.meta.ranks.rank.indexOf(place.rank);
    if (row >= 0) this.display.revealRow(row);
    if (place.span !== null) await this.select(place.span, true);
  }

  /** Select a span by id; null clears the selection. */
  async select(id: number | null, isCentered = false): Promise<void> {
    const span = await this.selection.select(id);
    if (!span) return;
    if (isCentered) this.showSpan(span);
    this.announce(`${this.sentence(span)}, ${durationText(span.duration, this.meta.time_unit)}`);
    await this.selection.loadChain(span.id);
  }

  /** Select the next match of the search, or the previous one for -1; what hides it is switched on. */
  async nextMatch(by: number): Promise<void> {
    const hit = this.search.advance(by, this.camera.view.peek().start);
    if (!hit) return;
    const shown = makeVisible(this.display, hit, this.kindName(hit.kind));
    await this.select(hit.id, true);
    if (shown) this.notify(shown);
  }

  /** Select the time of the selected span on all rows; without one, start or stop measuring by dragging. */
  measure(): void {
    const span = this.selection.selected.peek();
    if (span && span.duration > 0) {
      const rows = this.display.rows.peek().placed.map((one) => one.row);
      const range = { start: span.start, end: span.start + span.duration, rows: rows.sort((a, b) => a - b) };
      void this.selection.setRange(range);
      return;
    }
    const { measuring } = this.selection;
    measuring.value = !measuring.peek();
    this.notify(measuring.peek() ? t("measuring: drag over the picture") : t("dragging moves the picture"));
  }

  /** Move one end of the selected range to a time, not beyond the other; its statistics follow when `isDone`. */
  moveRange(end: "start" | "end", time: number, isDone: boolean): void {
    const range = this.selection.range.peek();
    if (!range) return;
    const whole = Math.round(time);
    const moved =
      end === "start"
        ? { ...range, start: clamp(whole, 0, range.end - 1) }
        : { ...range, end: clamp(whole, range.start + 1, this.meta.end) };
    if (isDone) void this.selection.setRange(moved);
    else this.selection.range.value = moved;
  }

  /** Where a new note is: at what is selected, else in the middle of the view. */
  placeOfNote(): { time: number; rank: number | null } {
    const { ranks } = this.meta;
    const span = this.selection.selected.value;
    if (span) return { time: span.start, rank: ranks.rank[span.row]! };
    const idle = this.idle.value;
    const place = this.selection.idle.value;
    if (idle && place !== null) return { time: idle.start[place]!, rank: ranks.rank[idle.row[place]!]! };
    const range = this.selection.range.value;
    if (range) return { time: range.start, rank: null };
    const { start, end } = this.camera.view.value;
    return { time: clamp(Math.round((start + end) / 2), 0, this.meta.end), rank: null };
  }

  /** Add a note there; false where it cannot be added. */
  addNote(text: string): boolean {
    return this.notes.add({ ...this.placeOfNote(), text });
  }

  /** Bring the place of a note onto the screen. */
  showNote({ time, rank, text }: Note): void {
    this.camera.reveal(time, time);
    const row = rank === null ? -1 : this.meta.ranks.rank.indexOf(rank);
    if (row >= 0) this.display.revealRow(row);
    this.notify(text);
  }

  /** Move the selection to the neighbor on its row, or to the span at the same time on the next row. */
  async moveFocus(by: "left" | "right" | "up" | "down"): Promise<void> {
    const current = this.selection.selected.peek();
    const { placed } = this.display.rows.peek();
    const at = current ? placed.findIndex((one) => one.row === current.row) : -1;
    if (!current || at < 0) {
      const { start, end } = this.camera.view.peek();
      const first = rowsOnScreen(this.display.screen()).flat()[0];
      const middle = Math.max(start, Math.min((start + end) / 2, this.meta.end));
      if (first) await this.selectNear(first.row, middle, 0);
      return;
    }
    if (by === "left" || by === "right") {
      await this.selectNeighbor(current, by === "left" ? -1 : 1);
      return;
    }
    const direction = by === "up" ? -1 : 1;
    for (let i = at + direction; i >= 0 && i < placed.length; i += direction)
      if (await this.selectNear(placed[i]!.row, current.start + current.duration / 2, 0)) return;
  }

  /** The lanes of every row at this zoom. */
  lanes(): Lanes {
    const flags = this.display.flags.value;
    const perPixel = length(this.camera.view.value) / this.display.size.value.width;
    return {
      thin: flags.has("comm") || flags.has("host"),
      ghost: this.comparison.value !== null || (this.display.ideal.value === "under" && this.hasIdeal.value),
      kernels: showsKernels(this.kernels.value?.typical ?? 0, perPixel),
    };
  }

  /** The kernel drawn at a point: pixels from the left, and from the top of a row of a height. */
  kernelAt(x: number, row: number, y: number, height: number): Kernel | null {
    const kernels = this.kernels.peek();
    const bands = divideRow(height, this.lanes());
    if (!kernels || y < bands.kernelTop || y >= bands.kernelTop + bands.kernelHeight) return null;
    const lane = Math.floor(((y - bands.kernelTop) / bands.kernelHeight) * kernels.laneCount(row));
    const view = this.camera.view.peek();
    const perPixel = length(view) / this.display.size.peek().width;
    const place = kernels.at(row, lane, view.start + x * perPixel, KERNEL_SLOP_PX * perPixel);
    return place < 0 ? null : kernels.kernel(place);
  }

  /** The span drawn at a point: pixels from the left, and the fraction of the row's height from its top. */
  spanAt(x: number, row: number, fraction: number): Span | null {
    const view = this.camera.view.peek();
    const perPixel = length(view) / this.display.size.peek().width;
    const point = { row, part: fraction, time: view.start + x * perPixel, perPixel };
    const { flags, hiddenKinds } = this.display;
    return findSpan(this.spansAround(row), point, flags.peek(), hiddenKinds.peek());
  }

  /** The idle interval drawn at a point, by its place; null: none. */
  idleAt(x: number, row: number): number | null {
    const idle = this.idle.peek();
    const { flags, causeFilter, size } = this.display;
    if (!idle || !flags.peek().has("idle")) return null;
    const view = this.camera.view.peek();
    const place = idle.at(row, view.start + (x * length(view)) / size.peek().width);
    if (place < 0 || (causeFilter.peek() ?? idle.causeOf(place)) !== idle.causeOf(place)) return null;
    return place;
  }

  /** Select an idle interval by its place, and show what is behind it. */
  async selectIdle(place: number, isCentered = false): Promise<void> {
    const idle = this.idle.peek();
    if (!idle) return;
    if (isCentered) this.showIdle(place);
    await this.selection.selectIdle(idle, place);
  }

  /** Select the interval of a link as soon as the intervals are read; null: none. */
  async wantInterval(place: number | null): Promise<void> {
    const idle = this.idle.peek();
    this.wantedInterval.value = idle ? null : place;
    if (idle && place !== null && place < idle.start.length) await this.selectIdle(place);
  }

  /** Bring an idle interval onto the screen; `isClose` zooms to it. */
  showIdle(place: number, isClose = false): void {
    const idle = this.idle.peek();
    if (idle)
      this.showSpan(
        { row: idle.row[place]!, start: idle.start[place]!, duration: idle.duration[place]! },
        isClose,
      );
  }

  /** The loaded spans of a row around the view, without binned tiles. */
  private spansAround(row: number): Spans[] {
    const view = this.camera.view.peek();
    const { width } = this.display.size.peek();
    const request = { start: view.start, end: view.end, rows: [row], ns_per_pixel: length(view) / width };
    const tiles = this.source.loaded(request);
    return tiles.map((tile) => tile.spans).filter((spans) => !spans.isBinned);
  }

  private async selectNeighbor(current: Span, by: number): Promise<void> {
    for (const spans of this.spansAround(current.row)) {
      const place = spans.place(current.id);
      const [from, to] = spans.track(current.row, current.lane);
      for (let next = place + by; place >= 0 && next >= from && next < to; next += by) {
        if (this.display.hiddenKinds.peek().has(spans.kind[next]!)) continue;
        return this.select(spans.id(next), true);
      }
    }
  }

  private async selectNear(row: number, time: number, lane: number): Promise<boolean> {
    for (const spans of this.spansAround(row)) {
      const [from, to] = spans.track(row, lane);
      if (from === to) continue;
      let place = spans.at(row, lane, time, 0);
      if (place < 0) place = clamp(spans.firstReaching(time, from, to), from, to - 1);
      await this.select(spans.id(place), true);
      return true;
    }
    return false;
  }
}
