import { expect, it } from "vitest";

import { largestPairs, matrixOf, type Transfer } from "../../src/layout/matrix";

const transfer = (source: number, target: number, bytes: number): Transfer => ({
  source,
  target,
  messages: 1,
  bytes,
  transfer_ns: 10 * bytes,
});
const TRANSFERS = [transfer(0, 4, 5), transfer(4, 0, 7), transfer(8, 4, NaN)];

it("has a row for every sender and a column for every receiver", () => {
  const { ranks, cells, largest } = matrixOf(TRANSFERS, [8, 0, 4], "bytes", 10);
  expect(ranks).toEqual([
    [0, 0],
    [4, 4],
    [8, 8],
  ]);
  expect([...cells]).toEqual([0, 5, 0, 7, 0, 0, 0, NaN, 0]);
  expect(largest).toBe(7);
});

it("sums ranks that share a cell", () => {
  const { ranks, cells } = matrixOf(TRANSFERS, [0, 4, 8], "messages", 2);
  expect(ranks).toEqual([
    [0, 4],
    [8, 8],
  ]);
  expect([...cells]).toEqual([2, 0, 1, 0]);
});

it("lists the largest pairs, unknown ones last", () =>
  expect(largestPairs(TRANSFERS, "bytes", 2).map((one) => [one.source, one.target])).toEqual([
    [4, 0],
    [0, 4],
  ]));

it("distinguishes what took no time from what was not sent", () => {
  const instant = [{ source: 0, target: 4, messages: 3, bytes: 0, transfer_ns: 0 }];
  const { cells, messages } = matrixOf(instant, [0, 4], "transfer_ns", 10);
  expect([...cells]).toEqual([0, 0, 0, 0]);
  expect([...messages]).toEqual([0, 3, 0, 0]);
});
