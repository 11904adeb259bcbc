"""The server of a running training: processor, memory, and how late steps appear, with a page that follows it.

    python benchmarks/live_page.py --ranks 64 --spans-per-s 1000 --seconds 60

Simulated ranks (tests/live_ranks.py) write as the recorder does, twice a second. The page is in Chromium. A version is
late by the time from the write of its last span to the moment when the page shows it; with --no-page, to the moment
when a client without a picture has its description. Needs Linux.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
RANKS = ROOT / "tests" / "live_ranks.py"
START_S = 12.0
LOOK_S = 0.02
NEWEST = """() => { const v = window.stagescopeViewer;
    return [v.meta.version, Number(BigInt(v.meta.base_ns) / 1000n) / 1e6 + v.meta.end / 1e9, Date.now() / 1e3,
            v.meta.span_count, v.live.trend.value.steps.length, v.live.training.value?.skipped ?? 0]; }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--spans-per-s", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--no-page", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "recordings"
        words = [directory, given.ranks, given.spans_per_s, given.seconds + 3 * START_S]
        writing = subprocess.Popen([sys.executable, RANKS, *map(str, words)])
        time.sleep(START_S)
        serving = subprocess.Popen(
            [sys.executable, "-m", "stagescope", "open", directory, "--no-browser"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": place},
        )  # fmt: skip
        try:
            link = next(line for line in serving.stdout or () if line.startswith("open ")).split()[1]
            (follow_stream if given.no_page else follow)(link, serving.pid, given)
        finally:
            for each in (serving, writing):
                each.terminate()
                each.wait()


def follow(link: str, pid: int, given: argparse.Namespace) -> None:
    """Follow the training on a page, and print what that took."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - not needed without a page

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(link)
        page.wait_for_function("() => window.stagescopeViewer?.live.isFollowing.value")
        time.sleep(2.0)
        late, last, used_s, began_s = watch(page, pid, given.seconds)
        browser.close()
    report(late, used_s, time.monotonic() - began_s, pid, given)
    print(f"measured: {last[4]} steps since the server began, {last[5]} skipped; {last[3]:,} spans are shown")


def follow_stream(link: str, pid: int, given: argparse.Namespace) -> None:
    """Follow the training without a page, and print what that took."""
    address = urlsplit(link)
    asking = http.client.HTTPConnection("127.0.0.1", address.port or 0)
    cookie = {"Cookie": ask(asking, f"/?{address.query}", {})[0].partition(";")[0]}
    listening = http.client.HTTPConnection("127.0.0.1", address.port or 0)
    listening.request("GET", "/events", headers=cookie)
    stream = listening.getresponse()
    late: list[float] = []
    last, began_s, before_s = "", time.monotonic(), processor_s(pid)
    while time.monotonic() - began_s < given.seconds:
        line = stream.readline()
        version = json.loads(line[6:])["version"] if line.startswith(b"data: {") else last
        if version != last:
            last = version
            meta = json.loads(ask(asking, f"/run/{version}/api/meta", cookie)[1])
            late.append(time.time() - (int(meta["base_ns"]) + meta["end"]) / 1e9)
    report(late[1:], processor_s(pid) - before_s, time.monotonic() - began_s, pid, given)


def ask(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> tuple[str, bytes]:
    """Return the cookie and the body of an answer."""
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.getheader("Set-Cookie") or "", answer.read()


def report(late: list[float], used_s: float, length_s: float, pid: int, given: argparse.Namespace) -> None:
    """Print what following took."""
    late.sort()
    print(f"{given.ranks} ranks, {given.spans_per_s:.0f} spans per second each, {length_s:.0f} s")
    print(f"server: {used_s / length_s:.2f} of a processor, {memory_mb(pid):.0f} MB at most")
    print(f"versions: {len(late) / length_s:.1f} per second")
    print(
        f"late: median {statistics.median(late):.2f} s, 95 % {late[int(0.95 * len(late))]:.2f} s, "
        f"most {late[-1]:.2f} s"
    )


def watch(page: Any, pid: int, seconds: float) -> tuple[list[float], list[Any], float, float]:
    """Return how late each version was, the last one, the processor time of the server, and when it began."""
    late: list[float] = []
    last = page.evaluate(NEWEST)
    began_s, before_s = time.monotonic(), processor_s(pid)
    while time.monotonic() - began_s < seconds:
        now = page.evaluate(NEWEST)
        if now[0] != last[0]:
            late.append(now[2] - now[1])
            last = now
        time.sleep(LOOK_S)
    return late, last, processor_s(pid) - before_s, began_s


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    main()
