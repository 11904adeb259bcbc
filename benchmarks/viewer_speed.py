"""How fast the viewer's page is, in a real browser without a GPU.

    python benchmarks/viewer_speed.py [SPANS | RANKSxMICROBATCHES]

A run of 64 ranks, 1F1B with jitter, or one step of so many ranks and micro-batches, goes into one page. The page is
opened from the file; then the view is panned and zoomed one animation frame at a time, and the time is that of the
frame's script and canvas commands, flushed by reading one pixel back. Size is that of the page, next to the limit of
15 MB for 2 M spans.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from consumers import CHROMIUM_OPTIONS
from programs import require_program
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.page import write_html
from synthetic import Shape, pipeline_timeline

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from stagescope.model import Timeline

RANKS, MICROBATCHES = 64, 64
ROUNDS = 5
FRAMES = 60
LIMITS = {"first picture": 2500, "frame median": 33, "frame p95": 60, "search": 150}

MEASURE = """async ([frames, whole]) => {
  const viewer = window.stagescopeViewer, canvas = document.querySelector('.canvas-box canvas');
  const pen = canvas.getContext('2d');
  const frame = () => new Promise(requestAnimationFrame);
  if (whole) viewer.camera.fitAll(); else { viewer.camera.view.value = viewer.camera.firstView(); }
  await frame(); await frame();
  const times = [];
  for (let i = 0; i < frames; i++) {
    // The picture's own request for a frame runs between these two.
    let began = 0;
    requestAnimationFrame(() => { began = performance.now(); });
    if (i % 2) viewer.camera.panBy(i % 4 === 1 ? 0.03 : -0.03);
    else viewer.camera.zoomBy(i % 4 ? 1 / 0.9 : 0.9, 0.4);
    await frame();
    pen.getImageData(0, 0, 1, 1);
    times.push(performance.now() - began);
  }
  return times;
}"""
SEARCH = """async (query) => {
  const viewer = window.stagescopeViewer;
  const began = performance.now();
  await viewer.search.run(query);
  return [performance.now() - began, viewer.search.found.value.count];
}"""
FIRST = """() => new Promise((resolve) => {
  const look = () => {
    const canvas = document.querySelector('.canvas-box canvas');
    if (!canvas || canvas.width < 400) return requestAnimationFrame(look);
    const pixels = canvas.getContext('2d').getImageData(canvas.width / 4, 40, canvas.width / 2, 40).data;
    const colors = new Set();
    for (let i = 0; i < pixels.length; i += 4) colors.add((pixels[i] << 16) | (pixels[i + 1] << 8) | pixels[i + 2]);
    if (colors.size < 4) return requestAnimationFrame(look);
    resolve(performance.now());
  };
  look();
})"""


def big_timeline(span_count: int) -> Timeline:
    """Return a run of `span_count` spans or a little fewer: one step, repeated with jittered durations."""
    step = pipeline_timeline(Shape(ranks=RANKS, microbatches=MICROBATCHES, steps=1))
    repeats = span_count // step.spans.height
    length_ns = int((step.spans["end_ns"].max() or 0) - (step.spans["start_ns"].min() or 0))
    random = np.random.default_rng(7)
    copies = [
        _shifted(step.spans, number, number * (length_ns + 1_000_000), random) for number in range(repeats)
    ]
    return step.with_spans(pl.concat(copies).sort("rank", "start_ns"))


def _shifted(spans: pl.DataFrame, step: int, by_ns: int, random: np.random.Generator) -> pl.DataFrame:
    """Return one more step; actions end up to 5 % early, by whole nanoseconds, as real ones differ."""
    early = pl.Series(random.uniform(0.0, 0.05, spans.height))
    end_ns = pl.col("end_ns") - ((pl.col("end_ns") - pl.col("start_ns")) * early).cast(pl.Int64)
    times = ["start_ns", "wait_start_ns", "wait_end_ns"]
    moved = spans.with_columns(end_ns=end_ns, step=pl.lit(step, pl.Int32))
    return moved.with_columns(pl.col(*times, "end_ns") + by_ns)


def report(name: str, value_ms: float) -> None:
    """Print one result next to its limit."""
    limit = next((limit for words, limit in LIMITS.items() if name.startswith(words)), None)
    print(f"  {name:34}{value_ms:9.1f} ms{f'  (limit {limit})' if limit else ''}")


def cpu_seconds(page: Page) -> float:
    """Return the CPU time that the page's process has used, which other work on the machine does not stretch."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["ProcessTime"])


def frames(page: Page, where: str, *, whole: bool) -> None:
    """Print the median and the 95th percentile of the frames of a pan and zoom."""
    page.evaluate(MEASURE, [FRAMES // 4, whole])
    began = cpu_seconds(page)
    times = page.evaluate(MEASURE, [FRAMES, whole])
    report(f"frame median, {where}", statistics.median(times))
    report(f"frame p95, {where}", statistics.quantiles(times, n=20)[-1])
    report(f"CPU time per frame, {where}", 1000 * (cpu_seconds(page) - began) / FRAMES)


def timeline_of(size: str) -> Timeline:
    """Return a run of so many spans, or one step of RANKSxMICROBATCHES."""
    ranks, _, microbatches = size.partition("x")
    if not microbatches:
        return big_timeline(int(size))
    return pipeline_timeline(Shape(ranks=int(ranks), microbatches=int(microbatches), steps=1))


def main() -> None:
    """Write the page, open it a few times, and print the results."""
    timeline = timeline_of(sys.argv[1] if len(sys.argv) > 1 else "1000000")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        began = time.process_time()
        extras = gather_extras(timeline)
        analyzed = time.process_time() - began
        began = time.process_time()
        written = write_html(timeline, Path(folder, "run.html"), extras)
        seconds = time.process_time() - began
        print(
            f"{timeline.spans.height} spans: {written.size_bytes / 1e6:.2f} MB with all analysis results "
            f"({0 if extras.idle is None else extras.idle.height} idle intervals), "
            f"analyzed in {analyzed:.1f} CPU s, written in {seconds:.1f}"
        )
        browser = playwright.chromium.launch(
            executable_path=str(require_program("chromium")), headless=True, args=CHROMIUM_OPTIONS
        )
        firsts, spent_seconds = [], []
        for _ in range(ROUNDS):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(written.path.as_uri(), wait_until="commit")
            page.wait_for_selector(".canvas-box canvas", timeout=60_000)
            firsts.append(page.evaluate(FIRST))
            spent_seconds.append(cpu_seconds(page))
            if len(firsts) < ROUNDS:
                page.close()
        report("first picture, median", statistics.median(firsts))
        report("first picture, slowest", max(firsts))
        report("CPU time to the first picture", 1000 * statistics.median(spent_seconds))
        frames(page, "one step", whole=False)
        frames(page, "whole run", whole=True)
        page.evaluate("() => window.stagescopeViewer.display.setPitch(1)")
        frames(page, "whole run, rows of one pixel", whole=True)
        for query in ("stage:3 mb:7 kind:B dur>1ms", "dur>1.9ms", "F3.7"):
            page.evaluate(SEARCH, query)
            spent = [page.evaluate(SEARCH, query) for _ in range(ROUNDS)]
            report(f"search {query} ({spent[0][1]})", statistics.median(one[0] for one in spent))
        browser.close()


if __name__ == "__main__":
    main()
