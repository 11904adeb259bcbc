"""The display of a timeline in a notebook, and that nothing of it happens anywhere else."""

import html
import subprocess
import sys
from types import ModuleType

import polars as pl
import pytest
from playwright.sync_api import sync_playwright

import stagescope
from consumers import CHROMIUM_OPTIONS
from drawing import timeline_from_text
from programs import require_program
from stagescope.viewer import notebook
from stagescope.viewer.notebook import inline_view

TIMELINE = timeline_from_text("F0 F1 B0 B1\n. F0 B0 F1 B1")


@pytest.fixture
def without_anywidget(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)


@pytest.fixture
def with_anywidget(monkeypatch):
    """Replace anywidget and traitlets, which are an extra; the arguments of a widget are kept."""

    class AnyWidget:
        def _repr_mimebundle_(self):
            return {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}, {"of": self}

    class Trait:
        def __init__(self, value):
            self.value, self.tags = value, {}

        def tag(self, **tags):
            self.tags = tags
            return self

    widgets, traits = ModuleType("anywidget"), ModuleType("traitlets")
    widgets.AnyWidget, traits.Bytes, traits.Int = AnyWidget, Trait, Trait
    monkeypatch.setitem(sys.modules, "anywidget", widgets)
    monkeypatch.setitem(sys.modules, "traitlets", traits)


@pytest.mark.usefixtures("without_anywidget")
def test_page_is_a_sandboxed_frame_without_anywidget():
    text = inline_view(TIMELINE)["text/html"]
    assert text.startswith('<iframe sandbox="allow-scripts" style="')
    _, _, page = text.partition('srcdoc="')
    page, _, rest = page.partition('"')
    assert rest == "></iframe>"
    page = html.unescape(page)
    assert page.startswith("<!doctype html>")
    assert 'id="stagescope-spans"' in page


@pytest.mark.usefixtures("without_anywidget")
def test_names_in_a_trace_cannot_leave_the_frame():
    name = "\"></iframe><script>alert(1)</script>'&quot;"
    hostile = TIMELINE.with_spans(TIMELINE.spans.with_columns(name=pl.lit(name)))
    text = inline_view(hostile)["text/html"]
    assert text.count("<") == 2
    assert text.count(">") == 2


@pytest.mark.usefixtures("with_anywidget")
def test_with_anywidget_the_page_is_data_of_a_widget():
    bundle, metadata = inline_view(TIMELINE)
    assert "text/html" not in bundle
    widget = metadata["of"]
    assert widget.page.value.startswith(b"<!doctype html>")
    assert widget.page.tags == {"sync": True}
    assert 'frame.setAttribute("sandbox", "allow-scripts")' in widget._esm


@pytest.mark.slow
@pytest.mark.usefixtures("without_anywidget")
def test_the_viewer_works_in_a_frame_without_rights(tmp_path):
    cell = tmp_path / "cell.html"
    cell.write_text(
        f"<!doctype html><title>cell</title>{inline_view(TIMELINE)['text/html']}", encoding="utf-8"
    )
    complaints = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=str(require_program("chromium")), headless=True, args=CHROMIUM_OPTIONS
        )
        page = chromium.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(cell.as_uri())
        frame = page.frames[1]
        frame.wait_for_function("() => window.stagescopeViewer && document.querySelector('canvas')")
        found = frame.evaluate("async () => (await window.stagescopeViewer.source.search('kind:F')).count")
        page.wait_for_timeout(1000)  # the address is written a moment after the picture
        chromium.close()
    assert found == 4
    assert complaints == []


def test_too_many_spans_are_not_sent_to_a_notebook(monkeypatch):
    monkeypatch.setattr(notebook, "MOST_SPANS", 7)
    text = inline_view(TIMELINE)["text/html"]
    assert text.startswith("<p>8 spans are too many for a notebook.")


@pytest.mark.usefixtures("without_anywidget")
def test_a_timeline_is_displayed_as_the_viewer():
    run = stagescope.Timeline.from_spans(TIMELINE.spans)
    assert "iframe" in run._repr_mimebundle_(include=None, exclude=None)["text/html"]


def test_importing_stagescope_imports_no_ipython_and_no_viewer():
    code = (
        "import sys, stagescope; print([n for n in sys.modules if n in ('IPython', 'anywidget', 'polars')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
