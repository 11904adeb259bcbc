import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { watchFreshness } from "../../src/app/freshness";
import { Viewer } from "../../src/layout/viewer";
import { sourceOf } from "../blob";

class Page extends EventTarget {
  hidden = false;
}

let page: Page;
let viewer: Viewer;
let asked: number;
let stop: () => void;

beforeEach(() => {
  vi.useFakeTimers();
  page = new Page();
  vi.stubGlobal("document", page);
  vi.stubGlobal("window", globalThis);
  asked = 0;
  const { meta, source } = sourceOf("F0 B0");
  source.lookForNewer = () => Promise.resolve(++asked > 0);
  viewer = new Viewer(meta, source);
  stop = watchFreshness(viewer);
});

afterEach(() => {
  stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const show = (isVisible: boolean): void => {
  page.hidden = !isVisible;
  page.dispatchEvent(new Event("visibilitychange"));
};

it("asks every five seconds while the page is seen, and at once when it is seen again", async () => {
  await vi.advanceTimersByTimeAsync(15_500);
  expect(asked).toBe(3);
  show(false);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toBe(3);
  show(true);
  await vi.advanceTimersByTimeAsync(0);
  expect(asked).toBe(4);
});

it("asks no more once there are newer data", async () => {
  viewer.freshness.value = { hasNewer: true, problem: "" };
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toBe(0);
});

it("asks no more where none can come, as in a page of its own", async () => {
  viewer.source.lookForNewer = () => Promise.resolve(++asked < 0);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toBe(1);
});
