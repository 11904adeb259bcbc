/** Sentences of the page, whole and with places for values, so that a catalog can hold them. */

export const TEXTS = {
  steps: "Steps",
  step: (step: string) => `step ${step}`,
  stepLength: (step: string, length: string) => `step ${step}: ${length}`,
  stepLengthAndBubble: (step: string, length: string, bubble: string) =>
    `step ${step}: ${length}, bubble ${bubble}`,
  longerThanUsual: (excess: string) => `${excess} longer than usual`,
  notInTotals: "not in the totals",
  stepBarsOf: (count: string) => `Length of ${count} steps`,
  slowestOf: (first: string, last: string) => `slowest of the steps ${first} to ${last}`,
  stepBarsLegend: "height: length of the step; pale: bubble; triangle: longer than chance explains",
  tested: "What was tested",
  table: "Table",
  list: "What the table shows",
  spansInView: "Spans in view",
  longestIdle: "Longest idle intervals",
  furthestFromIdeal: "Furthest from the ideal schedule",
  filterRows: "Filter rows",
  copyRows: "Copy",
  rowsCopied: (count: string) => `${count} rows are on the clipboard`,
  notCopied: "the browser does not allow copying",
  spanCount: (count: string) => `${count} spans in view`,
  firstOfSpans: (shown: string, count: string) =>
    `The first ${shown} of ${count} spans in view; zoom in for the others.`,
  rowCount: (count: string) => `${count} rows`,
  rowsOf: (shown: string, count: string) => `${shown} of ${count} rows`,
  largestOf: (shown: string, count: string) => `The largest ${shown} of ${count}`,
  faster: (percent: string) => `${percent} % faster`,
  slower: (percent: string) => `${percent} % slower`,
  thanInOtherRun: "than in the other run (lower half); pale: no match",
  thanInStep: (step: string) => `than in step ${step} (lower half); pale: no match`,
  stagesDiffer: (own: string, other: string) =>
    `not colored by change: this run has ${own} stages, the other one ${other}`,
  spansCut: (count: string) =>
    `${count} spans of the other run are cut off where the next step of this run begins.`,
  compareStep: (step: string) => `Compare step ${step} with step`,
  compare: "Compare",
  noSuchStep: (step: string) => `This run has no step ${step}.`,
} as const;
