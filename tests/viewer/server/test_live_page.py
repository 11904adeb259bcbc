"""The page of a running training in a real browser: simulated ranks, and a real training of four ranks."""

import re
import subprocess
import sys
import threading
import time
from importlib.resources import files
from pathlib import Path

import pytest

from children import clean_environment, recording_command
from live_ranks import LiveRanks
from running_server import PATIENCE_S
from stagescope import api
from stagescope.viewer.server.launch import lead_file

pytestmark = pytest.mark.slow

LIVE = "window.stagescopeViewer.live"
NEWEST = "() => window.stagescopeViewer.meta.steps.at(-1).step"
VIEW = "() => window.stagescopeViewer.camera.view.value"
CLOCK_VIEW = """() => { const v = window.stagescopeViewer, view = v.camera.view.value;
    return [view.start, view.end].map((time) => String(BigInt(v.meta.base_ns) + BigInt(Math.round(time)))); }"""
FOLLOW = "Follow"
TRAINING = Path(__file__).parents[3] / "tools" / "demo_live" / "train.py"


class Writing:
    """Simulated ranks that write twice a second until they are ended."""

    def __init__(self, directory, **options):
        self.ranks = LiveRanks(directory, spans_per_s=120, **options)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self):
        while not self._ended.wait(0.5):
            self.ranks.write()

    def end(self):
        self._ended.set()
        self._thread.join()


@pytest.fixture
def recordings(tmp_path):
    """Return the directory of ranks that have written a few steps and go on."""
    writing = Writing(tmp_path / "recordings")
    time.sleep(4 * writing.ranks.step_ns / 1e9)
    yield tmp_path / "recordings"
    writing.end()


@pytest.fixture
def visit(browser):
    """Return a function that opens a link; no page may have had an error of its own."""
    contexts, errors = [], []

    def open_page(link, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        return enter(context, link)

    def enter(context, link):
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(lead_file(link).as_uri())
        page.wait_for_function("() => window.stagescopeViewer && document.querySelector('canvas')")
        return page

    open_page.enter = enter
    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


def wait(page, condition, **options):
    page.wait_for_function(f"() => {condition}", timeout=PATIENCE_S * 1000, **options)


def pressed(page):
    return page.get_by_role("button", name=FOLLOW, exact=True).get_attribute("aria-pressed")


def test_page_follows_a_training_and_stays_where_the_user_is(visit, recordings):
    with api.open(recordings, browser=False) as viewer:
        page = visit(viewer.link)
        wait(page, f"{LIVE}.connection.value === 'connected' && {LIVE}.isFollowing.value")
        assert pressed(page) == "true"
        first, view = page.evaluate(NEWEST), page.evaluate(VIEW)
        wait(page, f"window.stagescopeViewer.meta.steps.at(-1).step >= {first} + 3")
        wait(page, f"({VIEW})().end > {view['end']}")  # the view moves with the next picture
        page.locator("canvas").first.click()
        page.keyboard.press("a")
        wait(page, f"!{LIVE}.isFollowing.value")
        assert pressed(page) == "false"
        place, newest = page.evaluate(CLOCK_VIEW), page.evaluate(NEWEST)
        wait(page, f"window.stagescopeViewer.meta.steps.at(-1).step >= {newest} + 2")
        assert page.evaluate(CLOCK_VIEW) == place
        page.keyboard.press("Shift+F")
        wait(page, "window.stagescopeViewer.camera.view.value.end >= window.stagescopeViewer.meta.end")
        assert pressed(page) == "true"


def test_page_shows_ranks_and_the_trend_of_measured_steps(visit, recordings):
    with api.open(recordings, browser=False) as viewer:
        page = visit(viewer.link)
        wait(page, f"{LIVE}.trend.value.steps.length >= 3")
        bar = page.get_by_role("region", name="Running training").inner_text()
        assert re.search(
            r"Live\s+Follow\s+step \d+\s+iteration [\d.]+ \w+\s+bubble [\d.]+ %\s+4 running", bar
        )
        rows = page.locator(".live-ranks tbody tr").all_inner_texts()
        assert [row.split()[0] for row in rows] == ["0", "1", "2", "3"]
        assert all(re.search(r"\d+\s+running .+, \d+ s ago", row) for row in rows)
        names = [each.get_attribute("aria-label") for each in page.locator(".trend svg").all()]
        assert [re.split("[:]|, last", name)[0] for name in names] == [
            "iteration", "lost time by cause", "slowest rank, and median", "slowest stage, and median",
        ]  # fmt: skip
        trend = page.evaluate(f"() => {LIVE}.trend.value.steps.map((step) => step.step)")
        assert trend == list(range(trend[0], trend[0] + len(trend)))


def test_trend_has_the_throughput_of_counted_tokens(visit, tmp_path):
    writing = Writing(tmp_path / "recordings", tokens=8192)
    try:
        time.sleep(4 * writing.ranks.step_ns / 1e9)
        with api.open(tmp_path / "recordings", browser=False) as viewer:
            page = visit(viewer.link)
            wait(page, f"{LIVE}.trend.value.steps.length >= 3")
            wait(page, "document.querySelectorAll('.trend svg').length === 5")
            figure = page.locator(".trend figure", has_text="tokens per second")
            shown = float(
                figure.locator("figcaption span").nth(1).inner_text().split("(")[0].replace(",", "")
            )
            # A step is as long as the writer made it.
            assert shown == pytest.approx(8192 / (writing.ranks.step_ns / 1e9), rel=0.02)
    finally:
        writing.end()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible_and_fits_a_phone(visit, recordings, scheme):
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    with api.open(recordings, browser=False) as viewer:
        page = visit(
            viewer.link, viewport={"width": 390, "height": 844}, color_scheme=scheme, bypass_csp=True
        )
        wait(page, f"{LIVE}.trend.value.steps.length >= 2")
        page.evaluate(axe)
        found = page.evaluate("() => axe.run().then((result) => result.violations.map((one) => one.id))")
        assert found == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def serve(directory, port):
    """Return a process of stagescope open, and its link."""
    words = [sys.executable, "-m", "stagescope", "open", directory, "--no-browser", "--port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    while not (line := process.stdout.readline()).startswith("open "):
        assert line
    return process, line.split()[1]


def test_page_connects_again_once_the_new_server_knows_the_browser(visit, recordings):
    process, link = serve(recordings, 0)
    port = int(re.search(r":(\d+)/", link)[1])
    page = visit(link)
    wait(page, f"{LIVE}.connection.value === 'connected'")
    end(process)
    wait(page, f"{LIVE}.connection.value === 'lost'")
    assert "Disconnected" in page.get_by_role("region", name="Running training").inner_text()
    process, link = serve(recordings, port)
    wait(page, f"{LIVE}.connection.value === 'refused'")
    assert "Open the link" in page.get_by_role("region", name="Running training").inner_text()
    before = page.evaluate("() => window.stagescopeViewer.meta.version")
    visit.enter(page.context, link).close()
    wait(page, f"{LIVE}.connection.value === 'connected'")
    wait(page, f"window.stagescopeViewer.meta.version !== '{before}'")
    end(process)


def end(process):
    process.terminate()
    process.wait(PATIENCE_S)
    process.stdout.close()


@pytest.fixture
def real_training(tmp_path):
    """Return the recordings of a training of torch with four ranks that goes on, and its control file."""
    pytest.importorskip("torch")
    control, recordings = tmp_path / "control", tmp_path / "recordings"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command = [*recording_command(recordings), *torchrun, str(TRAINING), str(control)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=clean_environment(), **silent) as process:
        until_s = time.monotonic() + 4 * PATIENCE_S
        while not recordings.is_dir() or len(list(recordings.glob("*.sscope"))) < 4:
            assert time.monotonic() < until_s
            time.sleep(0.2)
        yield recordings, control
        control.write_text("stop")
        process.wait(2 * PATIENCE_S)


@pytest.mark.exhaustive
def test_page_of_a_real_training_follows_it_and_names_the_rank_that_hangs(visit, real_training):
    recordings, control = real_training
    with api.open(recordings, browser=False) as viewer:
        page = visit(viewer.link)
        wait(page, f"{LIVE}.isFollowing.value && {LIVE}.trend.value.steps.length >= 10")
        newest = page.evaluate(NEWEST)
        wait(page, f"window.stagescopeViewer.meta.steps.at(-1).step > {newest} + 5")
        control.write_text("hang 2")
        alert = page.locator(".live-ranks [role=alert]")
        alert.wait_for(timeout=2 * PATIENCE_S * 1000)
        assert "Rank 2 holds up the training" in alert.inner_text()
        assert (
            alert.inner_text().split(" for ")[0]
            == api.hang_sentences(api.find_hang(recordings))[0].split(" for ")[0]
        )
        assert page.locator(".live-ranks tr.culprit th").all_inner_texts() == ["2"]
        assert "waits for rank" in page.locator(".live-ranks tbody").inner_text()
        control.write_text("")
        alert.wait_for(state="detached", timeout=2 * PATIENCE_S * 1000)
        control.write_text("stop")
        wait(page, f"{LIVE}.training.value.outcome === 'is over'")
        assert "The training is over" in page.get_by_role("region", name="Running training").inner_text()
