"""A page of the local server while its files change: newer data of the same run are shown at the same place."""

import time
from functools import partial

import pytest

from recordings import encode, recording_frames, span_record
from running_server import PATIENCE_S, resting, run_of, serving
from stagescope import api as workflow
from stagescope.viewer import links as links_module
from stagescope.viewer.server import live as live_module
from stagescope.viewer.server.app import ASSETS
from stagescope.viewer.server.launch import lead_file
from stagescope.viewer.server.live import LiveRun, Opener
from stagescope.viewer.tiles import stored
from synthetic import Shape, pipeline_timeline

pytestmark = pytest.mark.slow

TIMELINE = pipeline_timeline(Shape(ranks=2, microbatches=4, steps=2))
OFFER = "New data: reload"
ACTION_NS, STEP_NS = 1_000_000, 10_000_000
KEEP = "window.kept = window.stagescopeViewer"
SEEN = """() => { const v = window.stagescopeViewer, span = v.selection.selected.value;
    return [v.camera.view.value, v.selection.range.value, span.row, span.kind, span.start, span.duration]; }"""
LOOK_NOW = "() => document.dispatchEvent(new Event('visibilitychange'))"


@pytest.fixture
def visit(browser):
    """Return a function that opens the page of a server; at the end no page may have had an error of its own."""
    pages = []

    def open_page(visitor):
        page = browser.new_context(viewport={"width": 1200, "height": 700}).new_page()
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(lead_file(visitor.link).as_uri())
        page.wait_for_function("() => window.stagescopeViewer && document.querySelector('canvas')")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
        assert page.errors == []


def record_steps(folder, count):
    """Write what two ranks have recorded after so many steps, and not yet ended."""
    for rank in range(2):
        spans = []
        for step in range(count):
            began_ns = step * STEP_NS
            for place, kind in enumerate(("forward", "backward")):
                start_ns = began_ns + ACTION_NS * (rank if kind == "forward" else 4 - rank)
                facts = {"step": step, "stage": rank, "microbatch": 0, "chunk": 0}
                spans.append(span_record(kind, start_ns, start_ns + ACTION_NS + place, **facts))
        frames = recording_frames(spans, end=False, rank=rank, world_size=2, parallel={})
        (folder / f"rank-{rank:05}.sscope").write_bytes(encode(frames))


def growing(folder):
    """Return the run in a folder, as `stagescope open` looks at it."""
    fingerprint = workflow.files_state(folder)
    return LiveRun(
        Opener(partial(workflow.files_state, folder), partial(workflow.view_run, folder)),
        workflow.view_run(folder),
        fingerprint,
    )


def ask_until(page, condition):
    """Let the page ask for newer data until `condition` holds on it."""
    until = time.monotonic() + PATIENCE_S
    while not page.evaluate(condition):
        assert time.monotonic() < until
        page.evaluate(LOOK_NOW)
        page.wait_for_timeout(100)


def test_growing_recording_is_shown_in_place_with_the_same_view_range_and_span(visit, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(live_module, "LEAST_PAUSE_S", 0.0)
    folder = tmp_path / "recordings"
    folder.mkdir()
    record_steps(folder, 2)
    with serving(growing(folder), ASSETS) as visitor:
        page = visit(visitor)
        page.evaluate("() => window.stagescopeViewer.selection.setRange({start: 0, end: 5e6, rows: [0, 1]})")
        page.evaluate("() => window.stagescopeViewer.select(4)")
        page.wait_for_function("() => location.hash.includes('span=4')")
        page.evaluate(f"() => {{ {KEEP} }}")
        before = page.evaluate(SEEN)
        record_steps(folder, 5)
        page.wait_for_function("() => window.stagescopeViewer.meta.span_count === 20")
        page.wait_for_function("() => window.stagescopeViewer.selection.selected.value?.id === 10")
        assert page.evaluate(SEEN) == before
        assert page.evaluate("() => window.stagescopeViewer === kept")
        assert not page.get_by_role("button", name=OFFER).is_visible()
        page.wait_for_function(
            "(version) => location.pathname.includes(version)",
            arg=page.evaluate("() => window.stagescopeViewer.meta.version"),
        )


@pytest.mark.parametrize("large", [8_000_000, 1], ids=["as a timeline", "a file at a time"])
def test_a_stored_run_that_is_extended_is_shown_in_place(visit, tmp_path, monkeypatch, large):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(live_module, "LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(stored, "LARGE", large)
    folder, run = tmp_path / "recordings", tmp_path / "run.stagescope"
    folder.mkdir()
    record_steps(folder, 2)
    workflow.store(folder, out=run)
    with serving(growing(run), ASSETS) as visitor:
        page = visit(visitor)
        page.evaluate("() => window.stagescopeViewer.selection.setRange({start: 0, end: 5e6, rows: [0, 1]})")
        page.evaluate(f"() => {{ {KEEP} }}")
        before = page.evaluate("() => window.stagescopeViewer.camera.view.value")
        record_steps(folder, 5)
        workflow.store(folder, out=run, force=True)
        ask_until(page, "() => window.stagescopeViewer.meta.span_count === 20")
        assert page.evaluate("() => window.stagescopeViewer === kept")
        assert page.evaluate("() => window.stagescopeViewer.camera.view.value") == before
        assert page.evaluate("() => window.stagescopeViewer.meta.steps.length") == 5


def test_another_run_in_the_same_files_is_offered_and_shown_after_a_click(visit, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(live_module, "LEAST_PAUSE_S", 0.0)
    folder = tmp_path / "recordings"
    folder.mkdir()
    record_steps(folder, 5)
    with serving(growing(folder), ASSETS) as visitor:
        page = visit(visitor)
        record_steps(folder, 2)
        page.wait_for_function("() => window.stagescopeViewer.freshness.value.hasNewer")
        button = page.get_by_role("button", name=OFFER)
        assert button.is_visible()
        assert page.locator(".newer").get_attribute("aria-live") == "polite"
        assert page.evaluate("() => window.stagescopeViewer.meta.span_count") == 20
        button.click()
        page.wait_for_function("() => window.stagescopeViewer?.meta.span_count === 8")
        assert not page.get_by_role("button", name=OFFER).is_visible()


def test_files_that_became_unreadable_are_reported(visit, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(live_module, "LEAST_PAUSE_S", 0.0)
    folder = tmp_path / "recordings"
    folder.mkdir()
    record_steps(folder, 2)
    with serving(growing(folder), ASSETS) as visitor:
        page = visit(visitor)
        for path in folder.iterdir():
            path.unlink()
        ask_until(page, "() => window.stagescopeViewer.freshness.value.problem")
        page.locator(".newer", has_text="cannot be read").wait_for()  # it is drawn after the answer has come


def test_a_page_whose_version_is_gone_offers_to_reload(visit, tmp_path):
    live = resting(run_of(TIMELINE, tmp_path / "run"))
    with serving(live, ASSETS) as visitor:
        page = visit(visitor)
        versions = dict(live._versions)
        live._versions.clear()
        page.evaluate("() => window.stagescopeViewer.select(3)")
        page.wait_for_function("() => window.stagescopeViewer.freshness.value.hasNewer")
        assert "no longer has the data" in page.locator(".newer").inner_text()
        assert page.get_by_role("button", name=OFFER).is_visible()
        live._versions.update(versions)
        page.get_by_role("button", name=OFFER).click()
        page.wait_for_function("() => window.stagescopeViewer?.freshness.value.hasNewer === false")


def test_too_many_links_keep_the_span_selected(visit, tmp_path, monkeypatch):
    monkeypatch.setattr(links_module, "MOST_SURPLUS_PAIRS", -1000)
    with serving(resting(run_of(TIMELINE, tmp_path / "run")), ASSETS) as visitor:
        page = visit(visitor)
        action = page.evaluate(
            "async () => (await window.stagescopeViewer.source.search('kind:B stage:0')).at(0)"
        )
        page.evaluate("(id) => window.stagescopeViewer.select(id)", action["id"])
        page.evaluate("(span) => window.stagescopeViewer.selection.hoverOver(span)", action)
        assert page.evaluate("() => window.stagescopeViewer.selection.selected.value.id") == action["id"]
        assert "too many" in page.locator("[role=status]").inner_text()


def test_stopped_server_is_reported(visit, tmp_path):
    with serving(resting(run_of(TIMELINE, tmp_path / "run")), ASSETS) as visitor:
        page = visit(visitor)
    ask_until(page, "() => window.stagescopeViewer.freshness.value.problem")
    assert "does not answer" in page.locator(".newer").inner_text()
