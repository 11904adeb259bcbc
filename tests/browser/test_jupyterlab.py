"""Results in a real JupyterLab: run `pip install jupyterlab anywidget` for this test, it is skipped without."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from places import DATA

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

RECORDING = DATA / "recordings" / "v1"
CELLS = [
    f"import stagescope.api as stagescope\nrun = stagescope.read({str(RECORDING)!r})\nrun",
    "stagescope.analyze(run)",
    "stagescope.simulate('1f1b', ranks=4, microbatches=8)",
    "stagescope.compare(run, run)",
]
VIEW = "() => window.stagescopeViewer.camera.view.value.end - window.stagescopeViewer.camera.view.value.start"
SCROLLED = "() => Math.max(...[...document.querySelectorAll('*')].map((one) => one.scrollTop))"
START_S = 120


@pytest.fixture
def notebook(tmp_path):
    """Return the address of a notebook with `CELLS`, in a JupyterLab that ends with the test."""
    for module in ("jupyterlab", "anywidget"):
        pytest.importorskip(module)
    cells = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    work = tmp_path / "work"
    work.mkdir()
    (work / "results.ipynb").write_text(json.dumps(book), encoding="utf-8")
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "HOME")
    places = {name: str(tmp_path / name.lower()) for name in names}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [
        "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={work}", "--IdentityProvider.token=token",
    ]  # fmt: skip
    with (tmp_path / "log").open("w") as log:
        lab = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            env={**os.environ, **places},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        until = time.monotonic() + START_S
        while not answers(port):
            assert time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/lab/tree/results.ipynb?token=token"
        lab.terminate()
        lab.wait(30)


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_results_are_shown_and_the_wheel_scrolls_the_notebook(notebook, browser):
    page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
    page.goto(notebook)
    page.get_by_text("| Idle").first.wait_for(timeout=1000 * START_S)
    page.get_by_text("Run", exact=True).first.click()
    page.get_by_text("Run All Cells", exact=True).first.click()
    page.locator("iframe[title=stagescope]").wait_for(timeout=1000 * START_S)
    shown = page.locator("iframe[title=stagescope]").element_handle().content_frame()
    canvas = shown.locator(".canvas-box canvas")
    canvas.wait_for(timeout=1000 * START_S)
    page.wait_for_function("() => document.querySelectorAll('.jp-RenderedHTMLCommon table').length >= 3")
    if folder := os.environ.get("KEEP_PICTURES"):
        page.screenshot(path=f"{folder}/jupyterlab.png")
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0

    view = shown.evaluate(VIEW)
    canvas.hover(position={"x": 200, "y": 100})
    scrolled = page.evaluate(SCROLLED)
    page.mouse.wheel(0, 200)
    page.wait_for_function(f"(before) => ({SCROLLED})() > before", arg=scrolled)
    assert shown.evaluate(VIEW) == view
    canvas.hover(position={"x": 200, "y": 150})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    shown.wait_for_function(f"(before) => ({VIEW})() < before", arg=view)
    page.context.close()
