"""The page of another run is shown instead of this one, or compared with it: chosen, or dropped on the page."""

from __future__ import annotations

import pytest

from synthetic import Shape, pipeline_timeline

pytestmark = pytest.mark.slow

DROP = """([name, text]) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name, { type: 'text/html' }));
    for (const kind of ['dragover', 'drop']) {
        const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
        document.querySelector('.canvas-box canvas').dispatchEvent(event);
        if (!event.defaultPrevented) throw new Error('the browser would open the file');
    }
}"""


@pytest.fixture(scope="session")
def other_page(make_page):
    return make_page("smaller", pipeline_timeline(Shape(ranks=2, microbatches=3, steps=2)))


def wait_for_ranks(shown, count):
    shown.page.wait_for_function(f"() => window.stagescopeViewer.meta.ranks.rank.length === {count}")
    shown.settle()


def test_another_run_is_opened(open_page, run_page, other_page):
    shown = open_page(run_page, "group=machine&search=F0.1")
    with shown.page.expect_file_chooser() as chooser:
        shown.page.get_by_role("button", name="Open the page of another run").click()
    chooser.value.set_files(other_page)
    wait_for_ranks(shown, 2)
    assert shown.page.title() == shown.of("meta.document_title")
    assert shown.of("display.rowChoice.value.group") == "none"
    assert shown.page.locator(".row-label").count() == 2
    shown.page.locator("details.section .verdict").first.wait_for()
    # The keys and the address are those of the run in view.
    shown.press("w")
    step = shown.of("camera.step.value.step")
    shown.press("]")
    shown.press("[")
    assert shown.of("camera.step.value.step") == step
    shown.press("i")
    shown.page.wait_for_function("() => location.hash.includes('ideal=')")


def test_a_dropped_run_is_shown_or_compared(open_page, run_page, other_page):
    shown = open_page(run_page)
    text = other_page.read_text(encoding="utf-8")
    shown.page.evaluate(DROP, ["smaller.html", text])
    dialog = shown.page.get_by_role("dialog", name="Open a page")
    assert "smaller.html" in dialog.inner_text()
    dialog.get_by_role("button", name="Compare it with this run").click()
    shown.page.wait_for_function("() => window.stagescopeViewer.comparison.value")
    assert shown.of("meta.ranks.rank.length") == 4
    shown.page.evaluate(DROP, ["smaller.html", text])
    shown.page.get_by_role("button", name="Show it instead of this run").click()
    wait_for_ranks(shown, 2)
    assert shown.of("comparison.value") is None


def test_a_dropped_run_is_left_alone(open_page, run_page, other_page):
    shown = open_page(run_page)
    shown.page.evaluate(DROP, ["smaller.html", other_page.read_text(encoding="utf-8")])
    shown.page.get_by_role("dialog").wait_for()
    shown.settle()
    shown.page.keyboard.press("Escape")
    shown.page.get_by_role("dialog").wait_for(state="detached")
    assert shown.of("meta.ranks.rank.length") == 4


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("no page at all", "This run cannot be opened. "),
        (
            "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>",
            "This run cannot be opened. ",
        ),
    ],
    ids=["text", "script"],
)
def test_another_file_is_refused_and_nothing_in_it_is_run(content, reason, open_page, run_page):
    shown = open_page(run_page, may_complain=True)  # the policy of the page blocks the handler, and notes it
    shown.page.evaluate(DROP, ["other.html", content])
    shown.page.get_by_role("button", name="Show it instead of this run").click()
    shown.page.get_by_role("alert").filter(has_text=reason).wait_for()
    assert shown.page.evaluate("() => window.stolen") is None
    assert shown.of("meta.ranks.rank.length") == 4


def test_a_page_that_is_cut_off_is_refused(open_page, run_page, other_page):
    shown = open_page(run_page)
    text = other_page.read_text(encoding="utf-8")
    shown.page.evaluate(DROP, ["cut.html", text[: len(text) // 3]])
    shown.page.get_by_role("button", name="Show it instead of this run").click()
    shown.page.get_by_role("alert").filter(has_text="This run cannot be opened.").wait_for()
    shown.press("w")
    assert shown.of("meta.ranks.rank.length") == 4
