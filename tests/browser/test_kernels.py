"""The lane of kernels appears below the actions when the zoom makes them visible, and each states its facts."""

from pathlib import Path

import pytest

import stagescope

pytestmark = pytest.mark.slow

DEEPSEEK = Path(__file__).parents[1] / "data/kernels/deepseek_train.json.gz"
READ = "() => window.stagescopeViewer.kernels.value"
PLACE = """() => {
    const v = window.stagescopeViewer, k = v.kernels.value, view = v.camera.view.value;
    const place = k.category.findIndex((category, i) => category === 3 && k.start[i] > view.start + 1e6);
    const box = document.querySelector('.canvas-box canvas').getBoundingClientRect();
    const row = v.display.rows.value.placed[0], width = v.display.size.value.width;
    const height = row.height * 0.38, line = height / k.laneCount(0);
    const middle = k.start[place] + k.duration[place] / 2;
    return { place, x: box.left + ((middle - view.start) / (view.end - view.start)) * width,
             y: box.top + 34 + row.top + row.height - height + (k.lane[place] + 0.5) * line };
}"""
COLOR = """([x, y]) => {
    const canvas = document.querySelector('.canvas-box canvas'), box = canvas.getBoundingClientRect();
    return [...canvas.getContext('2d').getImageData(x - box.left, y - box.top, 1, 1).data].slice(0, 3);
}"""


def test_kernels_appear_when_zoomed_in_and_a_click_shows_their_facts(open_page, tmp_path):
    page = tmp_path / "pair.html"
    stagescope.export(stagescope.read(DEEPSEEK), page)
    shown = open_page(page)
    shown.page.wait_for_function(READ)
    assert shown.of("kernels.value.count") == 983
    assert shown.of("lanes().kernels") is False
    shown.page.evaluate("() => window.stagescopeViewer.camera.show(2e6, 14e6)")
    shown.settle()
    shown.page.wait_for_function("() => window.stagescopeViewer.lanes().kernels")
    shown.settle()
    at = shown.page.evaluate(PLACE)
    assert shown.page.evaluate(COLOR, [at["x"], at["y"] - 4]) == [0xD5, 0x5E, 0x00]  # communication
    shown.page.mouse.move(at["x"], at["y"])
    assert "communication" in shown.page.locator(".readout").inner_text()
    shown.page.mouse.click(at["x"], at["y"])
    shown.settle()
    facts = shown.facts("Selected span")
    assert (facts["category"], facts["operation"], facts["stream"]) == ("communication", "dispatch", "27")
    assert facts["action"] == "F, dispatch(F)"
    # A click on an action selects that instead.
    shown.page.mouse.click(at["x"], at["y"] - 60)
    shown.page.wait_for_function("() => window.stagescopeViewer.selection.selected.value")
    assert shown.of("selection.kernel.value") is None
