"""Hostile names, damaged files and runs at the edge of what there is: each shows something sensible."""

import re

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.model import RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform
from stagescope.viewer.page import write_html

pytestmark = pytest.mark.slow

HOUR_NS = 3_600 * 10**9
SCRIPT = "</script><img src=x onerror=\"window.hacked=1\"><svg onload='window.hacked=1'>"
HOSTILE = {
    "script": SCRIPT,
    "comment": "<!--<script>window.hacked=1</script>-->",
    "template": "{{constructor.constructor('window.hacked=1')()}}${window.hacked=1}",
    "right to left": "\u202egnp.exe\u2066\u200f",
    "nul": "a\0b\x1b[31m\ufffe",
    "long": "x" * 10_000,
    "separators": "\u2028\u2029&amp;]]>",
}


def spans_of(*rows, **columns):
    """Return a timeline of (rank, kind, start_ns, end_ns) with the same values in further columns."""
    frame = pl.DataFrame(rows, schema=["rank", "kind", "start_ns", "end_ns"], orient="row")
    lit = {name: pl.lit(value) for name, value in {"lane": "compute", "step": 0, **columns}.items()}
    ranks = frame.select("rank").unique(maintain_order=True)
    empty = empty_timeline()
    return Timeline(
        conform(frame.with_columns(**lit), SPANS),
        conform(ranks, RANKS),
        empty.steps,
        empty.clocks,
        empty.diagnostics,
    )


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_name_is_shown_as_text_everywhere(open_page, make_page, name):
    run = spans_of((0, "forward", 0, 1000), (1, "backward", 1000, 3000), name=name, stage=0, microbatch=0)
    ranks = run.ranks.with_columns(
        machine=pl.lit(name), host=pl.lit(name), device=pl.lit(name), schedule=pl.lit(name)
    )
    run = Timeline(run.spans, conform(ranks, RANKS), run.steps, run.clocks, run.diagnostics)
    shown = open_page(make_page("hostile", run), "group=machine&with=table.arrows&span=0")
    page = shown.page
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("img, iframe, object, embed").count() == 0
    assert page.evaluate("() => document.querySelectorAll('script').length") == page.evaluate(
        "() => document.querySelectorAll('script:not([type]), script[id^=stagescope-]').length"
    )
    expected = name.replace("\0", "\ufffd")[:2000]
    details = page.locator("dl.facts dd").all_inner_texts()
    assert any(text.replace("\0", "\ufffd").startswith(expected[:40]) for text in details)
    assert page.locator(".visible-table tbody tr").count() == 2
    at = shown.spot(1)
    page.mouse.move(at["x"], at["y"])
    shown.settle()
    assert page.locator(".readout").bounding_box()["height"] < 30
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def text_of(page_file):
    return page_file.read_text(encoding="utf-8")


def failure(open_page, path, text):
    path.write_text(text, encoding="utf-8")
    shown = open_page(path, may_complain=True)
    assert shown.page.get_by_role("heading", name="This run cannot be shown").is_visible()
    return shown.page.locator("[role=alert] p").inner_text()


def test_truncated_file_shows_an_error_wherever_it_ends(open_page, run_page, tmp_path):
    text = text_of(run_page)
    spans = text.index('id="stagescope-spans"')
    words = failure(open_page, tmp_path / "spans.html", text[: spans + 900])
    assert re.search(r'block "spans" has \d+ of \d+ characters', words)
    words = failure(open_page, tmp_path / "meta.html", text[: text.index('id="stagescope-meta"') + 200])
    assert 'block "meta" cannot be read' in words
    words = failure(open_page, tmp_path / "none.html", text[: spans - 60])
    assert "has no spans: it is cut off" in words


def test_damaged_data_are_not_drawn(open_page, run_page, tmp_path):
    text = text_of(run_page)
    start = text.index(">", text.index('id="stagescope-spans"')) + 1
    damaged = text[: start + 200] + "A" * 400 + text[start + 600 :]
    assert "damaged or cut off" in failure(open_page, tmp_path / "damaged.html", damaged)
    no_digits = text[: start + 200] + "!" * 400 + text[start + 600 :]
    assert "is no base64" in failure(open_page, tmp_path / "digits.html", no_digits)
    newer = text.replace('{"format":1,', '{"format":2,', 1)
    assert "format 2; its viewer reads format 1" in failure(open_page, tmp_path / "newer.html", newer)


def test_a_damaged_extra_leaves_the_picture(open_page, run_page, tmp_path):
    text = text_of(run_page)
    start = text.index(">", text.index('id="stagescope-idle"')) + 1
    path = tmp_path / "extra.html"
    path.write_text(text[: start + 20] + "A" * 60 + text[start + 80 :], encoding="utf-8")
    shown = open_page(path, may_complain=True)
    words = shown.page.locator(".warning").inner_text()
    assert words.startswith("The analysis of this run cannot be shown. The data in this file are damaged")
    assert shown.page.locator(".row-label").count() == 4


def test_browser_without_decompression_gets_a_list_of_browsers(browser, run_page):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(run_page.as_uri())
    words = page.locator("[role=alert] p")
    words.wait_for()
    assert "DecompressionStream" in words.inner_text()
    assert "Firefox 113" in words.inner_text()
    context.close()


def test_an_old_browser_without_base64_of_its_own_shows_the_same(browser, run_page, run):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.add_init_script("delete Uint8Array.fromBase64")
    page.goto(run_page.as_uri())
    page.wait_for_function("() => window.stagescopeViewer")
    assert page.evaluate("() => window.stagescopeViewer.source.spans.count") == run.spans.height
    context.close()


def test_page_without_javascript_states_that_it_needs_it(browser, run_page):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(run_page.as_uri())
    assert "It needs JavaScript" in page.locator("#viewer").inner_text()
    context.close()


def test_empty_timeline_shows_that_nothing_was_recorded(open_page, make_page):
    shown = open_page(make_page("empty", empty_timeline()))
    assert "0 ranks" in shown.page.locator("h1").inner_text()
    assert "Nothing was recorded" in shown.page.locator(".main").inner_text()
    for key in ("w", "0", "f", "]", "ArrowRight", "m", "t", "i"):
        shown.press(key)


def test_hiding_all_rows_shows_how_to_restore_them(open_page, run_page):
    shown = open_page(run_page, "hide=0.1.2.3")
    assert "Every row is hidden" in shown.page.locator(".main").inner_text()
    shown.press("Shift+H")
    assert shown.page.locator(".row-label").count() == 4


def test_one_rank_and_one_span_fill_the_picture(open_page, make_page):
    shown = open_page(make_page("one", timeline_from_text("F0")))
    assert shown.page.locator(".row-label").count() == 1
    shown.click(0)
    assert shown.facts("Selected span")["duration"] == "1.000 µs (1,000 ns)"
    for key in ("w", "s", "ArrowRight", "ArrowLeft", "ArrowDown", "]", "f", "0"):
        shown.press(key)


def test_spans_without_length_are_seen_and_can_be_hit(open_page, make_page):
    run = spans_of(
        (0, "forward", 500, 500), (0, "backward", 900, 700), (1, "forward", 0, 1000), stage=0, microbatch=0
    )
    shown = open_page(make_page("points", run))
    shown.click(0)
    assert shown.facts("Selected span")["duration"] == "0 ns (0 ns)"
    assert "spans end before they start" in shown.page.locator(".diagnostics").inner_text()


def test_ten_thousand_rows_scroll_and_keep_their_names(open_page, make_page):
    rows = [(rank, "forward", 1000 * (rank % 50), 1000 * (rank % 50) + 900) for rank in range(10_000)]
    shown = open_page(make_page("rows", spans_of(*rows, stage=0, microbatch=0), analyzed=False))
    assert shown.page.locator(".row-label").count() < 200
    shown.page.locator(".row-labels").hover()
    shown.page.mouse.wheel(0, 70_000)  # a row is 14 pixels high
    shown.settle()
    names = [int(text.split()[1]) for text in shown.page.locator(".row-label .rank").all_inner_texts()]
    assert min(names) > 4000
    assert names == sorted(names)
    shown.press("Shift+X")
    shown.press("Shift+G")


def test_times_beyond_2_to_the_53_ns_are_rounded_with_a_diagnostic(open_page, make_page):
    late = 2**53 + HOUR_NS
    run = spans_of((0, "forward", 0, 1000), (0, "backward", late, late + 2000), stage=0, microbatch=0)
    shown = open_page(make_page("late", run))
    assert "are rounded" in shown.page.locator(".diagnostics").inner_text()
    shown.page.evaluate("() => window.stagescopeViewer.select(1, true)")
    shown.page.wait_for_function(f"() => {shown.js_selected()} === 1")
    assert shown.of("selection.selected.value.duration") == 2000


def test_times_since_1970_are_exact(open_page, make_page):
    origin_ns = 1_763_600_000_123_456_789
    shown = open_page(make_page("epoch", timeline_from_text("F0 . B0", origin_ns=origin_ns)))
    shown.click(1)
    assert shown.facts("Selected span")["start on the clock"] == f"{origin_ns + 2000} ns"


def test_hours_between_steps_do_not_hide_the_steps(open_page, make_page):
    steps = [
        timeline_from_text("F0 B0\n. F0 B0", step=step, origin_ns=step * 5 * HOUR_NS) for step in range(3)
    ]
    spans = pl.concat([one.spans for one in steps])
    shown = open_page(make_page("hours", steps[0].with_spans(spans)))
    view = shown.of("camera.view.value")
    assert view["end"] - view["start"] < 10_000  # a step, not 10 hours
    for _ in range(2):
        shown.press("]")
    assert shown.of("camera.step.value.step") == 2
    shown.press("0")
    colors = shown.page.evaluate(
        """() => { const c = document.querySelector('.canvas-box canvas');
        const data = c.getContext('2d').getImageData(0, 40, c.width, 1).data;
        return new Set(Array.from({ length: c.width }, (_, i) => data[4 * i] * 65536 + data[4 * i + 1])).size; }"""
    )
    assert colors > 1  # three steps of 3 us in 10 hours are still dots


def test_a_page_cannot_be_made_to_fetch_or_run_anything(open_page, run_page):
    shown = open_page(run_page, may_complain=True)
    blocked = shown.page.evaluate(
        """async () => {
            const tried = [];
            try { await fetch('data:text/plain,x'); tried.push('fetch'); } catch {}
            const script = document.createElement('script'), image = new Image();
            script.textContent = 'window.hacked = 1';
            image.src = 'https://example.invalid/x.png';
            document.body.append(script, image);
            await new Promise((done) => setTimeout(done, 100));
            if (window.hacked) tried.push('script');
            return tried;
        }"""
    )
    assert blocked == []
    shown.requests[:] = [url for url in shown.requests if "example.invalid" not in url]


def test_the_page_of_a_step_alone_has_that_step(open_page, run, tmp_path):
    path = tmp_path / "step.html"
    write_html(run.only_step(2), path)
    shown = open_page(path)
    assert shown.of("meta.steps.length") == 1
    assert shown.page.locator(".step-bars").count() == 0
