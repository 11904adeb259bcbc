"""Kernels of a run with too many for one section: the server sends those of a part, and the page asks for them."""

from pathlib import Path

import polars as pl
import pytest
from playwright.sync_api import sync_playwright

import stagescope
from column_blobs import read_blob
from consumers import CHROMIUM_OPTIONS
from programs import require_program
from running_server import assets_in, resting, run_of, serving
from stagescope.viewer import kernel_data
from stagescope.viewer.server.app import ASSETS
from stagescope.viewer.server.launch import lead_file
from stagescope.viewer.tiles import sources

DEEPSEEK = Path(__file__).parents[2] / "data/kernels/deepseek_train.json.gz"
MOST = 300
COUNT = "() => window.stagescopeViewer.kernels.value && window.stagescopeViewer.kernels.value.count"
SHOW = "([start, end]) => window.stagescopeViewer.camera.show(start, end)"
IN_VIEW = """([start, end]) => {
  const kernels = window.stagescopeViewer.kernels.value;
  if (!kernels) return null;
  const [first, last] = kernels.within(0, start, end);
  const found = [];
  for (let i = first; i < last; i++)
    if (kernels.start[i] + kernels.duration[i] > start) found.push([kernels.start[i], kernels.lane[i]]);
  return found;
}"""


@pytest.fixture
def timeline(monkeypatch):
    """Return DeepSeek's pair, with more kernels than may be sent at once."""
    for module in (kernel_data, sources, stagescope.viewer.run_data):
        monkeypatch.setattr(module, "MOST_KERNELS", MOST)
    return stagescope.read(DEEPSEEK)


@pytest.fixture
def rows(timeline):
    return kernel_data.kernel_rows(timeline.kernels, [0]).with_columns(
        start=pl.col("start") - timeline.spans["start_ns"].min()
    )


def test_the_server_sends_the_kernels_of_a_part(timeline, rows, tmp_path):
    with serving(resting(run_of(timeline, tmp_path / "run")), assets_in(tmp_path / "assets")) as visitor:
        visitor.enter()
        meta = visitor.json("meta")
        assert "kernels" not in meta["sections"]
        assert meta["kernels"]["count"] == rows.height == 983
        assert meta["kernels"]["lanes"] == [3]
        assert meta["kernels"]["typical_ns"] == sorted(rows["duration"])[491]
        assert "viewer.kernels_omitted" not in {one["code"] for one in meta["diagnostics"]}
        start, end = 2_000_000, 6_000_000
        status, blob = visitor.api("kernels", start=start, end=end, rows="0")
        assert status == 200
        table, _ = read_blob(blob)
        expected = rows.filter(pl.col("start") < end, pl.col("start") + pl.col("duration") > start)
        assert 0 < expected.height < MOST
        assert table["start"] == expected["start"].to_list()
        for name in ("duration", "lane", "stream", "name", "category", "operation", "action"):
            assert table[name] == expected[name].to_list()
        assert visitor.api("kernels", start=0, end=10**9, rows="0")[0] == 413
        assert visitor.api("kernels", start=0, end=10**9, rows="1")[0] == 400


def test_a_run_with_few_kernels_has_no_parts(tmp_path):
    run = run_of(stagescope.read(DEEPSEEK), tmp_path / "run")
    with serving(resting(run), assets_in(tmp_path / "assets")) as visitor:
        visitor.enter()
        meta = visitor.json("meta")
        assert "kernels" in meta["sections"]
        assert "kernels" not in meta
        assert visitor.api("kernels", start=0, end=5, rows="0")[0] == 404


@pytest.mark.slow
def test_the_page_asks_for_the_kernels_in_view_once_they_can_be_seen(timeline, rows, tmp_path):
    run = run_of(timeline, tmp_path / "run")
    with serving(resting(run), ASSETS) as visitor, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=str(require_program("chromium")), headless=True, args=CHROMIUM_OPTIONS
        )
        page = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(lead_file(visitor.link).as_uri())
        page.wait_for_function("() => window.stagescopeViewer && document.querySelector('canvas')")
        assert page.evaluate(COUNT) is None
        for start, end in ((2_000_000, 6_000_000), (60_000_000, 64_000_000)):
            page.evaluate(SHOW, [start, end])
            expected = rows.filter(pl.col("start") < end, pl.col("start") + pl.col("duration") > start)
            places = [list(one) for one in expected.select("start", "lane").rows()]
            page.wait_for_function(
                f"(want) => JSON.stringify(({IN_VIEW})([{start}, {end}])) === JSON.stringify(want)",
                arg=places,
            )
            assert page.evaluate(COUNT) <= MOST
            assert page.evaluate("() => window.stagescopeViewer.lanes().kernels") is True
        page.screenshot(path=tmp_path / "kernels.png")
        chromium.close()
