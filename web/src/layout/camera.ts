/** The time range on the screen: zoom, pan, the undo history, and the step in view. */

import { computed, type ReadonlySignal, type Signal, signal } from "@preact/signals";
import { t } from "../model/language";

import type { Meta, Step } from "../model/meta";
import { clamp, framed, hold, length, pan, type View, zoom } from "./view";

const UNDO_LIMIT = 100;
/** Moves that follow each other within this time are undone as one: a wheel sends dozens per gesture. */
const SAME_MOVE_MS = 500;

export class Camera {
  private readonly bounded: ReadonlySignal<View>;
  readonly view: Signal<View>;
  /** The step nearest to the middle of the view. */
  readonly step: ReadonlySignal<Step | null>;
  private readonly history: View[] = [];
  private lastMove = -Infinity;

  constructor(
    private readonly meta: () => Meta,
    private readonly announce: (text: string) => void,
    private readonly now: () => number,
  ) {
    this.bounded = computed(() => framed(0, Math.max(this.meta().end, 1)));
    this.view = signal(this.firstView());
    this.step = computed(() => this.stepAt((this.view.value.start + this.view.value.end) / 2));
  }

  /** The whole run with a margin. */
  get bounds(): View {
    return this.bounded.value;
  }

  /** The times of other data: what was at 0 is at `by` now. */
  shift(by: number): void {
    for (const each of this.history) {
      each.start += by;
      each.end += by;
    }
  }

  /** The step of median length if there are several, else the whole run. */
  firstView(): View {
    const { steps } = this.meta();
    if (steps.length <= 1) return this.bounds;
    const byLength = [...steps].sort((a, b) => a.end - a.start - (b.end - b.start));
    const median = byLength[(steps.length - 1) >> 1]!;
    return hold(framed(median.start, median.end), this.bounds);
  }

  /** Show another range. */
  move(view: View): void {
    const before = this.view.peek();
    if (view.start === before.start && view.end === before.end) return;
    const time = this.now();
    if (time - this.lastMove > SAME_MOVE_MS) this.history.push(before);
    if (this.history.length > UNDO_LIMIT) this.history.shift();
    this.lastMove = time;
    this.view.value = view;
  }

  zoomBy(factor: number, anchor = 0.5): void {
    this.move(zoom(this.view.peek(), factor, anchor, this.bounds));
  }

  panBy(fraction: number): void {
    this.move(pan(this.view.peek(), fraction, this.bounds));
  }

  /** Show [start, end] with a margin, as one move of its own. */
  show(start: number, end: number): void {
    this.lastMove = -Infinity;
    this.move(hold(framed(start, end), this.bounds));
    this.lastMove = -Infinity;
  }

  /** Move as little as needed for [start, end] to be on the screen. */
  reveal(start: number, end: number): void {
    const view = this.view.peek();
    if (start >= view.start && end <= view.end) return;
    const middle = (start + end) / 2;
    const half = Math.max(length(view), (end - start) * 1.2) / 2;
    this.move(hold({ start: middle - half, end: middle + half }, this.bounds));
  }

  fitAll(): void {
    this.show(0, this.meta().end);
    this.announce(t("the whole run"));
  }

  /** Return to the view before the last move; false without one. */
  undo(): boolean {
    const before = this.history.pop();
    if (!before) return false;
    this.lastMove = -Infinity;
    this.view.value = before;
    return true;
  }

  goToStep(index: number): void {
    const step = this.meta().steps[clamp(index, 0, this.meta().steps.length - 1)];
    if (!step) return;
    this.show(step.start, step.end);
    this.announce(t`step ${step.step}`);
  }

  moveStep(by: number): void {
    const current = this.step.peek();
    if (current) this.goToStep(this.meta().steps.indexOf(current) + by);
  }

  private stepAt(time: number): Step | null {
    let nearest: Step | null = null;
    let least = Infinity;
    for (const step of this.meta().steps) {
      const distance = Math.max(step.start - time, time - step.end, 0);
      if (distance < least) [nearest, least] = [step, distance];
    }
    return nearest;
  }
}
