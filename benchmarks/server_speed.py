"""How long the local server takes for a large run: its levels, the first picture in a browser, and every zoom.

    python benchmarks/server_speed.py            1,000 ranks x 100 steps x 64 actions, 6.4 million spans
    python benchmarks/server_speed.py 10000      64 million; needs 2 GB for the table and 6 GB for the levels on disk
    python benchmarks/server_speed.py RUN        a stored run, with its report if it has one

The table is 1F1B by rule, written a few ranks at a time. `stagescope open` runs as a user starts it, with an empty
cache. The picture and the zooms are those of headless Chromium without a GPU; the requests are single ones, from
Python, so that their time is the server's.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from playwright.sync_api import sync_playwright

import running_server
from programs import require_program
from running_server import Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

STEPS, MICROBATCHES, STAGES = 100, 32, 16
FORWARD_NS, BACKWARD_NS, STEP_NS = 1_000_000, 2_000_000, 160_000_000
RANKS_AT_ONCE = 250
LIMITS = {
    "spans a second": 2_000_000,
    "first picture, s": 3.0,
    "slowest zoom, s": 0.4,
    "server memory, GB": 2.0,
}
running_server.PATIENCE_S = 900
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def spans_of(ranks: range) -> pl.DataFrame:
    """Return 1F1B on pipelines of STAGES ranks: 64 actions per step, with durations that vary."""
    random = np.random.default_rng(ranks.start)
    actions = 2 * MICROBATCHES
    rank = np.repeat(np.array(ranks), STEPS * actions)
    step = np.tile(np.repeat(np.arange(STEPS), actions), len(ranks))
    place = np.tile(np.arange(actions), len(ranks) * STEPS)
    stage = rank % STAGES
    warmup = STAGES - 1 - stage
    # After the warm-up, forwards and backwards take turns until the forwards are used up.
    steady = place - warmup
    is_forward = (place < warmup) | ((steady % 2 == 0) & (place <= 2 * MICROBATCHES - 2 - warmup))
    forwards = np.where(steady < 0, place, np.minimum(warmup + (steady + 1) // 2, MICROBATCHES))
    microbatch = np.where(is_forward, forwards, place - forwards)
    length = np.where(is_forward, FORWARD_NS, BACKWARD_NS) * random.uniform(0.9, 1.3, len(rank))
    offset = np.cumsum(length.reshape(-1, actions), axis=1) - length.reshape(-1, actions)
    start = (step * STEP_NS + stage * FORWARD_NS + offset.ravel()).astype(
        np.int64
    ) + 1_763_600_000_000_000_000
    return pl.DataFrame(
        {
            "rank": rank.astype(np.int32), "lane": "compute",
            "kind": np.where(is_forward, "forward", "backward"), "step": step.astype(np.int32),
            "stage": stage.astype(np.int32), "chunk": np.zeros(len(rank), np.int16),
            "microbatch": microbatch.astype(np.int32), "start_ns": start, "end_ns": start + length.astype(np.int64),
        }
    )  # fmt: skip


def write_table(rank_count: int, folder: Path) -> Path:
    """Return a Parquet file with the spans of so many ranks."""
    parts = folder / "parts"
    parts.mkdir()
    for first in range(0, rank_count, RANKS_AT_ONCE):
        spans_of(range(first, min(first + RANKS_AT_ONCE, rank_count))).write_parquet(
            parts / f"{first:08}.parquet"
        )
    table = folder / "run.parquet"
    pl.scan_parquet(sorted(parts.iterdir())).sink_parquet(table, row_group_size=500_000)
    for part in parts.iterdir():
        part.unlink()
    return table


class Server:
    """A running `stagescope open`, and what it has used so far."""

    def __init__(self, table: Path, cache: Path) -> None:
        """Start it and wait for its link."""
        command = [sys.executable, "-m", "stagescope", "open", str(table), "--no-browser"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        began = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        found = None
        while found is None:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(f"stagescope open ended with {self.process.wait()}")
            found = re.search(r"http://127\.0\.0\.1:(\d+)/\S+", line)
        self.ready_s = time.perf_counter() - began
        self.link, self.port = found[0], int(found[1])

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def memory_gb(self, name: str) -> float:
        """Return VmRSS, or VmHWM for the most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1e6

    def end(self) -> None:
        """End it by Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


@contextmanager
def started(table: Path, cache: Path) -> Iterator[Server]:
    """Start a server for the time of a block."""
    server = Server(table, cache)
    try:
        yield server
    finally:
        server.end()


def report(what: str, value: float, note: str = "") -> None:
    """Print one figure beside its limit."""
    limit = f"   limit {LIMITS[what]:,}" if what in LIMITS else ""
    print(f"{what:24}{value:14,.3f}{limit}  {note}", flush=True)


def time_requests(server: Server) -> str:
    """Print the slowest tile on every level; return the cookie that the link was traded for."""
    known = Visitor(server.port, server.link).enter()
    known.version = known.ask("/")[1]["location"].split("/")[2]
    meta = known.json("meta")
    row_count = len(meta["ranks"]["rank"])
    for level, width in reversed(list(enumerate(one["bin_ns"] for one in meta["levels"]))):
        length = width * meta["tile_bins"]
        seconds, sizes = [], []
        for share in (0.0, 0.37, 0.8):
            start = int(meta["end"] * share) // length * length
            row = int(row_count * share) // meta["tile_rows"] * meta["tile_rows"]
            rows = f"{row}-{min(row + meta['tile_rows'], row_count)}"
            began = time.perf_counter()
            status, body = known.api("tile", level=level, start=start, end=start + length, rows=rows)
            seconds.append(time.perf_counter() - began)
            sizes.append(len(body) if status == 200 else -status)
        report(f"tile of level {level}, s", max(seconds), f"{max(sizes):,} bytes")
    for name, question in {
        "search": {"q": "stage:3 mb:7 kind:B dur>2.5ms", "limit": 5000},
        "select": {"start": 0, "end": meta["end"], "rows": f"0-{row_count}"},
        "links": {"id": meta["span_count"] // 2, "whole": 1},
    }.items():
        began, spent_s = time.perf_counter(), server.cpu_s()
        status, _ = known.api(name, **question)
        taken_s = time.perf_counter() - began
        report(f"{name}, s", taken_s, f"CPU {server.cpu_s() - spent_s:.1f} s, status {status}")
    return known.cookie


def open_page(server: Server, page: Page, cookie: str) -> None:
    """Print how long the first picture took."""
    name, _, value = cookie.partition("=")
    page.context.add_cookies([{"name": name, "value": value, "url": f"http://127.0.0.1:{server.port}"}])
    began = time.perf_counter()
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.wait_for_function("() => window.stagescopeViewer && document.querySelector('canvas')")
    wait_for_tiles(page)
    report("first picture, s", time.perf_counter() - began)


def wait_for_tiles(page: Page) -> None:
    """Wait until the page waits for no tile and has drawn those that it got."""
    page.wait_for_function(
        """() => { const source = window.stagescopeViewer.source;
        return !source.isBusy; }""",
        polling=5,
        timeout=120_000,
    )
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def time_zooms(page: Page) -> None:
    """Print the median and the slowest of zooming from the whole run to single actions, and back."""
    seconds = []
    page.keyboard.press("0")
    wait_for_tiles(page)
    for key in "w" * 14 + "d" * 4 + "s" * 14:
        began = time.perf_counter()
        page.keyboard.press(key)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        wait_for_tiles(page)
        seconds.append(time.perf_counter() - began)
    report("median zoom, s", statistics.median(seconds))
    report("slowest zoom, s", max(seconds))


def main() -> None:
    """Print all figures for one size."""
    size = sys.argv[1] if len(sys.argv) > 1 else "1000"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = write_table(int(size), folder) if size.isdecimal() else Path(size)
        files = [table] if table.is_file() else list(table.rglob("*.parquet"))
        spans = files if table.is_file() else [path for path in files if "spans" in path.parts]
        span_count = sum(pl.scan_parquet(path).select(pl.len()).collect().item() for path in spans)
        size_mb = sum(path.stat().st_size for path in files) / 1e6
        report("spans", span_count, f"{size_mb:,.0f} MB of Parquet")
        with started(table, folder / "cache") as server:
            report("ready with levels, s", server.ready_s, f"CPU {server.cpu_s():.1f} s")
            report("spans a second", span_count / server.ready_s)
            report("spans a CPU second", span_count / server.cpu_s())
            report("peak while building, GB", server.memory_gb("VmHWM"))
        size = sum(path.stat().st_size for path in (folder / "cache").rglob("*") if path.is_file())
        report("levels, GB", size / 1e9)
        with started(table, folder / "cache") as server:
            report("ready from the cache, s", server.ready_s)
            cookie = time_requests(server)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=require_program("chromium"),
                    args=["--no-sandbox", "--disable-dev-shm-usage"],
                )
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                open_page(server, page, cookie)
                time_zooms(page)
                browser.close()
            report("server memory, GB", server.memory_gb("VmHWM"), f"now {server.memory_gb('VmRSS'):.2f}")


if __name__ == "__main__":
    main()
