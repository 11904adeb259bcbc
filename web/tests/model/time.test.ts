import { readFileSync } from "node:fs";

import { expect, it } from "vitest";

import { changeText, durationText, momentText, parseDuration, percentText } from "../../src/model/time";

it.each([
  [12_345_678, "12.35 ms"],
  [420_000, "420.0 µs"],
  [7, "7 ns"],
  [0, "0 ns"],
  [-2_500_000, "−2.500 ms"],
])("writes %d ns with its unit and four digits", (ns, text) => expect(durationText(ns)).toBe(text));

it("writes units of cost as numbers", () => {
  expect([1e6, 2.5e6, 10e6].map((ns) => durationText(ns, "cost"))).toEqual(["1", "2.5", "10"]);
});

it("reads durations, and nothing else", () => {
  expect(["5ms", "300 us", "1.5s", "20", "20ns", ".5µs"].map(parseDuration)).toEqual([
    5e6, 3e5, 1.5e9, 20, 20, 500,
  ]);
  expect(["ms", "5 min", "-1ms", ""].map(parseDuration)).toEqual([null, null, null, null]);
});

it("keeps moments exact beyond what a double holds", () => {
  expect(momentText("1763600000123456789", 2)).toBe("1763600000123456791");
});

it("writes fractions as percent", () => expect(percentText(0.3118)).toBe("31.2 %"));
it("writes small negative fractions as 0.0 %", () => expect(percentText(-1e-9)).toBe("0.0 %"));

it.each([
  [0.12, "+12.0 %"],
  [-0.5, "−50.0 %"],
  [11.3, "12x"],
  [5000, "over 1000x"],
])("writes the change %d", (change, text) => expect(changeText(change)).toBe(text));

const SHARED = JSON.parse(
  readFileSync(new URL("../../../tests/data/viewer/number_texts.json", import.meta.url), "utf-8"),
) as { durations: [number, string][]; percents: [number, string][] };

it.each(SHARED.durations)("writes the duration %d as the terminal does", (ns, text) =>
  expect(durationText(ns)).toBe(text),
);

it.each(SHARED.percents)("writes the fraction %d as the terminal does", (fraction, text) =>
  expect(percentText(fraction)).toBe(text),
);
