/** What the user points at: the hovered span, the selected span with its links, and the selected range. */

import { batch, type Signal, signal } from "@preact/signals";

import type { IdleIntervals } from "../model/idle";
import type { Kernel } from "../model/kernels";
import { type Links, type Source, type Span, type Statistics, TooManyError } from "../model/source";
import { chainLinks, followIdle, type IdleChain } from "./idle_chain";

/** A time range on some rows. */
export interface Range {
  start: number;
  end: number;
  rows: number[];
}

/** Where messages of a selection go: `notify` shows text for a few seconds, `fail` shows an error. */
export interface Messages {
  notify(text: string): void;
  fail(text: string): void;
}

export class Selection {
  readonly hover: Signal<Span | null> = signal(null);
  readonly hoverLinks: Signal<Links | null> = signal(null);
  readonly selected: Signal<Span | null> = signal(null);
  /** The links of the selected span's micro-batch. */
  readonly chain: Signal<Links | null> = signal(null);
  /** The selected kernel, and the one under the pointer. */
  readonly kernel: Signal<Kernel | null> = signal(null);
  readonly hoverKernel: Signal<Kernel | null> = signal(null);
  /** The selected idle interval, by its place in the table, and the one under the pointer. */
  readonly idle: Signal<number | null> = signal(null);
  readonly hoverIdle: Signal<number | null> = signal(null);
  /** What is behind the selected idle interval, once it is known. */
  readonly idleChain: Signal<IdleChain | null> = signal(null);
  readonly range: Signal<Range | null> = signal(null);
  /** Of the range, once the source has computed them. */
  readonly statistics: Signal<Statistics | null> = signal(null);
  /** Whether dragging selects a range instead of moving the picture. */
  readonly measuring = signal(false);

  constructor(
    private readonly source: () => Source,
    private readonly messages: Messages,
  ) {}

  /** Forget what belongs to the data before: spans under the pointer, kernels and idle intervals. */
  forgetOthers(): void {
    this.hover.value = null;
    this.hoverLinks.value = null;
    this.chain.value = null;
    this.kernel.value = null;
    this.hoverKernel.value = null;
    this.idle.value = null;
    this.hoverIdle.value = null;
    this.idleChain.value = null;
  }

  /** Select a span by id (null: none); return it once its details are known. */
  async select(id: number | null): Promise<Span | null> {
    if (id === null) {
      batch(() => {
        this.clear();
        this.selected.value = null;
        this.chain.value = null;
      });
      return null;
    }
    const span = await this.attempt(this.source().details(id));
    if (span)
      batch(() => {
        this.clear();
        this.selected.value = span;
      });
    return span;
  }

  /** Select a kernel instead of a span. */
  selectKernel(kernel: Kernel): void {
    batch(() => {
      this.clear();
      this.selected.value = null;
      this.chain.value = null;
      this.kernel.value = kernel;
    });
  }

  /** Select an idle interval instead of a span, and find what is behind it. */
  async selectIdle(idle: IdleIntervals, place: number): Promise<void> {
    batch(() => {
      this.clear();
      this.selected.value = null;
      this.chain.value = null;
      this.idle.value = place;
    });
    const chain = await this.attempt(followIdle(idle, this.source(), place));
    if (this.idle.peek() !== place || !chain) return;
    batch(() => {
      this.idleChain.value = chain;
      this.chain.value = chainLinks(idle, chain);
    });
  }

  /** Nothing but a span is selected any more. */
  private clear(): void {
    this.kernel.value = null;
    this.idle.value = null;
    this.idleChain.value = null;
  }

  async loadChain(id: number): Promise<void> {
    const chain = await this.attempt(this.source().links(id, true));
    if (this.selected.peek()?.id === id) this.chain.value = chain;
  }

  async hoverOver(span: Span | null): Promise<void> {
    if (span?.id === this.hover.peek()?.id) return;
    this.hover.value = span;
    this.hoverLinks.value = null;
    if (!span) return;
    // Errors are ignored: the pointer crosses many spans, and a message for each would hide the picture.
    const links = await this.source()
      .links(span.id, false)
      .catch(() => null);
    if (this.hover.peek()?.id === span.id) this.hoverLinks.value = links;
  }

  async setRange(range: Range | null): Promise<void> {
    this.range.value = range;
    if (!range) {
      this.statistics.value = null;
      return;
    }
    const statistics = await this.attempt(this.source().select(range.start, range.end, range.rows));
    if (this.range.peek() === range) this.statistics.value = statistics;
  }

  /** The source's answer; null after an error, which is shown. */
  private async attempt<Answer>(asked: Promise<Answer>): Promise<Answer | null> {
    try {
      return await asked;
    } catch (problem) {
      const text = problem instanceof Error ? problem.message : String(problem);
      if (problem instanceof TooManyError) this.messages.notify(text);
      else this.messages.fail(text);
      return null;
    }
  }
}
