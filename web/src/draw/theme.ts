/** Inks of the two themes; the style sheet has the same for the panels. */

export interface Inks {
  paper: string;
  track: string;
  ink: string;
  quiet: string;
  grid: string;
  accent: string;
  /** As 0xBBGGRR, for pixels. */
  wait: number;
  select: string;
  /** Bars of steps: compute, bubble, steps apart from the totals, marks of outliers, and the step in view. */
  stepBusy: string;
  stepIdle: string;
  stepApart: string;
  stepOutlier: string;
  stepCurrent: string;
  /** Markers of notes. */
  noteFill: string;
  noteInk: string;
  fontFamily: string;
}

const FONT =
  'system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", sans-serif';

export const LIGHT: Inks = {
  paper: "#ffffff",
  track: "#f2f3f5",
  ink: "#1a1a1a",
  quiet: "#5f6368",
  grid: "#e0e2e6",
  accent: "#b34700",
  wait: 0xd09a4a,
  select: "rgba(0, 114, 178, 0.13)",
  stepBusy: "#6b7684",
  stepIdle: "#c9d0d8",
  stepApart: "#a9b1ba",
  stepOutlier: "#b34700",
  stepCurrent: "#0061a0",
  noteFill: "#7a1f6e",
  noteInk: "#ffffff",
  fontFamily: FONT,
};

export const DARK: Inks = {
  paper: "#15171b",
  track: "#22252b",
  ink: "#ececec",
  quiet: "#a4a9b1",
  grid: "#31353c",
  accent: "#ffb469",
  wait: 0xe9b456,
  select: "rgba(86, 180, 233, 0.18)",
  stepBusy: "#8d97a5",
  stepIdle: "#48515c",
  stepApart: "#69727e",
  stepOutlier: "#ffb469",
  stepCurrent: "#7cc4f2",
  noteFill: "#e3a6da",
  noteInk: "#15171b",
  fontFamily: FONT,
};
