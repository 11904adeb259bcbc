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
} as const;
