/** What is drawn and how: rows, layers, hidden kinds, theme, panels, and the size of the picture. */

import { computed, type ReadonlySignal, type Signal, signal } from "@preact/signals";

import type { Meta } from "../model/meta";
import { type IdealPlace, NOTHING_CHOSEN, type Theme } from "./hash";
import type { Flag } from "./hit";
import {
  autoPitch,
  LARGEST_PITCH,
  pinnedHeight,
  placeRows,
  type RowChoice,
  type RowScreen,
  type Rows,
  screenTop,
} from "./rows";
import { clamp } from "./view";

export const DEFAULT_FLAGS: Flag[] = ["arrows", "waits", "idle", "minimap"];

export class Display {
  readonly scroll = signal(0);
  /** CSS pixels of the rows, without the axis. */
  readonly size = signal({ width: 900, height: 400 });
  /** Whether all rows have to fit the height, as on paper; otherwise they have a least height, and scroll. */
  readonly isPrinted = signal(false);
  readonly rowChoice: Signal<RowChoice> = signal(NOTHING_CHOSEN.rows);
  /** Row height chosen by the user; null: rows share the height. */
  readonly pitchChoice = signal<number | null>(null);
  readonly flags: Signal<ReadonlySet<Flag>> = signal(new Set(DEFAULT_FLAGS));
  readonly ideal = signal<IdealPlace>("off");
  readonly theme = signal<Theme>("auto");
  readonly hiddenKinds: Signal<ReadonlySet<number>> = signal(new Set<number>());
  /** Name of the cause whose idle intervals alone are shown; null: all. */
  readonly causeFilter: Signal<string | null> = signal(null);
  readonly panel = signal("");
  /** Increases when the field for a note is asked for. */
  readonly noteAsked = signal(0);
  readonly dialog = signal<"" | "help" | "palette">("");
  readonly rows: ReadonlySignal<Rows>;
  readonly pitch: ReadonlySignal<number>;

  constructor(meta: () => Meta) {
    this.pitch = computed(() => {
      const shown = meta().ranks.rank.length - this.rowChoice.value.hidden.length;
      if (this.isPrinted.value) return autoPitch(shown, this.size.value.height, 1);
      return this.pitchChoice.value ?? autoPitch(shown, this.size.value.height);
    });
    this.rows = computed(() => placeRows(meta(), this.rowChoice.value, this.pitch.value));
  }

  /** Where the rows are on the screen, of which `height` pixels are seen. */
  screen(height = this.size.value.height): RowScreen {
    return { rows: this.rows.value, scroll: this.scroll.value, height };
  }

  setScroll(top: number): void {
    this.scroll.value = clamp(top, 0, this.rows.peek().height - this.size.peek().height);
  }

  /** Scroll until a row is on the screen. */
  revealRow(row: number): void {
    const placed = this.rows.peek().placed.find((one) => one.row === row);
    if (!placed) return;
    const screen = { rows: this.rows.peek(), scroll: this.scroll.peek(), height: this.size.peek().height };
    const fixed = pinnedHeight(screen);
    if (placed.top < fixed) return;
    const top = screenTop(screen, placed.top);
    if (top < fixed || top + placed.height > screen.height)
      this.setScroll(placed.top - (fixed + screen.height) / 2);
  }

  setPitch(pitch: number): void {
    this.pitchChoice.value = clamp(Math.round(pitch), 1, LARGEST_PITCH);
    this.setScroll(this.scroll.peek());
  }

  toggle(flag: Flag): void {
    this.flags.value = toggled(this.flags.peek(), flag);
  }

  toggleKind(code: number): void {
    this.hiddenKinds.value = toggled(this.hiddenKinds.peek(), code);
  }

  /** Pin a row to the top, or unpin it. */
  pin(row: number): void {
    const { pinned } = this.rowChoice.peek();
    const next = pinned.includes(row) ? pinned.filter((one) => one !== row) : [...pinned, row];
    this.rowChoice.value = { ...this.rowChoice.peek(), pinned: next };
  }

  hide(row: number): void {
    const choice = this.rowChoice.peek();
    this.rowChoice.value = { ...choice, hidden: [...choice.hidden, row] };
  }

  showAllRows(): void {
    this.rowChoice.value = { ...this.rowChoice.peek(), hidden: [] };
  }
}

function toggled<T>(all: ReadonlySet<T>, one: T): ReadonlySet<T> {
  const next = new Set(all);
  if (!next.delete(one)) next.add(one);
  return next;
}
