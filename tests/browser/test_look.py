"""How the viewer looks: pictures that were looked at, dark mode, small windows, large type, print, no barriers."""

import json
import os
import re
from pathlib import Path

import pytest

from pictures import difference_fraction
from synthetic import Shape, pipeline_timeline

pytestmark = pytest.mark.slow

PICTURES = Path(__file__).parent / "pictures"
ALLOWED_FRACTION = 0.01
STATES = {
    "light": ("", {}),
    "analyzed": ("ideal=under&with=arrows.critical.idle.clocks.comm", {}),
    "chosen": ("group=machine&span=SPAN&range=45000000-62000000@1-2&with=arrows.idle.table", {}),
    "whole-run": ("t=0-100000000000", {}),
    "low-rows": ("t=0-100000000000&pitch=3&panel=none", {}),
    "found": ("q=mb:5 kind:B", {}),
    "one-kind": ("without=forward.loss&pin=3&hide=1", {}),
    "one-cause": ("idle=schedule_bubble&with=idle", {}),
    "interval": ("interval=12&with=arrows.idle", {}),
    "two-steps": ("steps=2-1", {}),
    "notes": ("note=45000000@1~the second forward&panel=none", {}),
    "phone": ("", {"viewport": {"width": 390, "height": 844}}),
}
"""Each is drawn in light and in dark."""
SMALLER = {"viewport": {"width": 1024, "height": 640}}
LARGE = ("light", "analyzed", "chosen")
DARK = {"light": "", "dark": "-dark"}
OVERFLOW = """() => [...document.querySelectorAll('.app, .header, .main, .side')].filter(
    (one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.className)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", STATES)
def test_picture_equals_the_reviewed_one(open_page, run_page, name, scheme):
    """`make golden` rewrites the pictures; look at each before you commit it."""
    hash_, options = STATES[name]
    if "SPAN" in hash_:
        hash_ = hash_.replace("SPAN", str(open_page(run_page).id("backward", 1, 4)))
    sizes = {} if name in LARGE else SMALLER
    shown = open_page(run_page, hash_, **{**sizes, **options, "color_scheme": scheme})
    found = shown.page.screenshot()
    kept = PICTURES / f"{'dark' if (name, scheme) == ('light', 'dark') else name + DARK[scheme]}.png"
    if "WRITE_PICTURES" in os.environ:
        kept.write_bytes(found)
    fraction = difference_fraction(shown.page, kept.read_bytes(), found)
    assert fraction < ALLOWED_FRACTION, f"{fraction:.2%} of the pixels differ from {kept.name}"


def luminance(shown, selector):
    color = shown.page.evaluate(
        f"() => getComputedStyle(document.querySelector('{selector}')).backgroundColor"
    )
    red, green, blue = (int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")[:3])
    return (red + green + blue) / 765


def test_dark_mode_follows_the_system_and_the_button_overrules_it(open_page, run_page):
    shown = open_page(run_page, color_scheme="dark")
    assert luminance(shown, "body") < 0.2
    shown.page.emulate_media(color_scheme="light")
    shown.settle()
    assert luminance(shown, "body") > 0.9
    shown.page.get_by_role("button", name="Theme: auto").click()
    shown.settle()
    assert luminance(shown, "body") < 0.2
    corner = shown.page.evaluate(
        "() => [...document.querySelector('.canvas-box canvas').getContext('2d').getImageData(0, 0, 1, 1).data]"
    )
    assert max(corner[:3]) < 60  # the canvas is as dark as the page


def test_print_is_light_and_fits_paper_with_the_verdict_and_the_account(open_page, run_page):
    shown = open_page(run_page, "panel=none", color_scheme="dark", viewport={"width": 1280, "height": 720})
    shown.page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    shown.page.emulate_media(media="print", color_scheme="dark")
    shown.page.set_viewport_size(
        {"width": 717, "height": 1046}
    )  # A4 in portrait between margins of 0.4 inches
    assert luminance(shown, "body") > 0.9
    box = shown.page.locator(".chart").bounding_box()
    canvas = shown.page.locator(".canvas-box canvas").bounding_box()
    assert canvas["x"] + canvas["width"] <= 717
    assert box["height"] == pytest.approx(canvas["height"], abs=1)
    visible = shown.page.locator(".section:visible h2").all_inner_texts()
    assert visible == ["Why", "Where the time went"]
    assert shown.page.locator(".legend").is_visible()
    assert not shown.page.locator(".steps").is_visible()
    shown.page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert shown.of("display.isPrinted.value") is False


PAPERS = {
    "A4": (717, 1046),
    "A4 landscape": (1046, 717),
    "Letter": (739, 979),
    "Letter landscape": (979, 739),
}
"""Pixels between margins of 0.4 inches."""


@pytest.mark.parametrize("paper", PAPERS)
def test_printed_picture_is_as_wide_as_the_paper_and_not_cut(paper, open_page, run_page):
    width, height = PAPERS[paper]
    shown = open_page(run_page, viewport={"width": width, "height": height})
    shown.page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    shown.page.emulate_media(media="print")
    canvas = shown.page.locator(".canvas-box canvas").bounding_box()
    assert 0.92 * width < canvas["x"] + canvas["width"] <= width
    clipping = """() => [".row-labels", ".row-window"].map(
        (name) => getComputedStyle(document.querySelector(name)).overflowY)"""
    # Of rows lower than a line of text, the last label ends below its row.
    assert shown.page.evaluate(clipping) == ["visible", "visible"]
    shown.page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")


def test_portrait_prints_of_few_ranks_are_one_page(open_page, run_page):
    shown = open_page(run_page)
    margin = "0.4in"
    printed = shown.page.pdf(
        format="A4",
        print_background=True,
        margin={"top": margin, "bottom": margin, "left": margin, "right": margin},
    )
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1


DRAWN_SIZES = """window.drawnSizes = [];
const { setTransform } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.setTransform = function (...matrix) {
    if (this.canvas.closest('.canvas-box')) window.drawnSizes.push([this.canvas.width, this.canvas.height]);
    return setTransform.apply(this, matrix);
};"""


def test_picture_has_its_final_size_when_it_is_first_drawn(open_page, run_page, pool):
    settings = {"viewport": {"width": 1280, "height": 720}, "reduced_motion": "reduce", "locale": "en-GB"}
    fresh = pool.take(settings)
    fresh.page.add_init_script(DRAWN_SIZES)
    pool.give_back(fresh)
    shown = open_page(run_page, viewport={"width": 1280, "height": 720}, locale="en-GB")
    shown.page.wait_for_function("() => document.querySelectorAll('.ledger li').length > 0")
    shown.settle()
    sizes = shown.page.evaluate("() => window.drawnSizes")
    assert len({tuple(size) for size in sizes}) == 1, sizes


@pytest.mark.parametrize(
    ("width", "height", "scale"),
    [(360, 740, 1), (720, 450, 2), (1024, 600, 1), (360, 225, 4), (2560, 1300, 1)],
)
def test_nothing_is_cut_off_in_a_small_window_or_with_large_type(open_page, run_page, width, height, scale):
    shown = open_page(
        run_page, viewport={"width": width, "height": height}, device_scale_factor=scale
    )  # 720 at 2 is 1440 pixels at 200 %
    assert shown.page.evaluate(OVERFLOW) == []
    if height >= 450:  # lower windows scroll, so that the picture keeps a usable height
        assert shown.page.evaluate("() => document.documentElement.scrollHeight - innerHeight") == 0
    box = shown.page.locator(".canvas-box canvas").bounding_box()
    assert box["width"] > 0.55 * min(width, 900) - 60
    assert box["x"] + box["width"] <= width + 1
    shown.press("?")
    dialog = shown.page.locator("dialog").bounding_box()
    assert dialog["x"] >= 0
    assert dialog["x"] + dialog["width"] <= width


WIDE_TABLES = """() => [...document.querySelectorAll('.side .section')].flatMap((section) => {
    const inner = section.getBoundingClientRect().right - parseFloat(getComputedStyle(section).paddingRight);
    return [...section.querySelectorAll('table.figures')].map((one) => one.getBoundingClientRect().right - inner);
}).filter((excess) => excess > 0.5)"""


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_table_of_a_selection_fits_its_panel(open_page, run_page, width, height):
    hash_ = "range=0-200000000@0-3&panel=selection"
    shown = open_page(run_page, hash_, viewport={"width": width, "height": height})
    shown.page.evaluate(
        "() => document.querySelectorAll('.side details').forEach((one) => (one.open = true))"
    )
    shown.page.wait_for_function("() => window.stagescopeViewer.selection.statistics.value")
    shown.settle()
    assert shown.page.locator(".side table.figures").count() >= 2
    assert shown.page.evaluate(WIDE_TABLES) == []
    assert shown.page.evaluate(OVERFLOW) == []
    if folder := os.environ.get("KEEP_PICTURES"):
        shown.page.locator(".side table.figures").first.scroll_into_view_if_needed()
        shown.page.screenshot(path=f"{folder}/selection-{width}.png")


DRAWN_TEXTS = """window.drawnTexts = [];
const { fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    if (this.canvas.closest('.canvas-box') && /^[0-9]+$/.test(text)) window.drawnTexts.push(text);
    return fillText.call(this, text, ...place);
};"""


def test_blocks_of_many_ranks_have_numbers_in_rows_of_the_first_height(open_page, make_page, pool):
    settings = {"viewport": {"width": 1280, "height": 720}, "reduced_motion": "reduce", "locale": "en-US"}
    fresh = pool.take(settings)
    fresh.page.add_init_script(DRAWN_TEXTS)
    pool.give_back(fresh)
    page = make_page("many", pipeline_timeline(Shape(ranks=64, microbatches=4, steps=1)), analyzed=False)
    shown = open_page(page, viewport={"width": 1280, "height": 720}, locale="en-US")
    shown.page.evaluate("() => window.drawnTexts.splice(0)")
    shown.page.evaluate(
        "() => { const v = window.stagescopeViewer, c = v.camera.view.value; "
        "v.camera.view.value = { start: c.start, end: c.start + (c.end - c.start) / 8 }; }"
    )
    shown.settle()
    if folder := os.environ.get("KEEP_PICTURES"):
        shown.page.screenshot(path=f"{folder}/many.png")
    assert set(shown.page.evaluate("() => window.drawnTexts")) >= {"0", "1", "2", "3"}


AXE_STATES = [
    ("", "light", ["", "?", "Control+k"]),
    ("", "dark", ["", "?", "Control+k"]),
    ("group=machine&with=arrows.table.idle&ideal=under", "light", [""]),
    ("pitch=120&with=nothing&hide=1&q=stag:3", "dark", [""]),
]


@pytest.mark.parametrize("state", AXE_STATES, ids=[f"{scheme} {hash_}" for hash_, scheme, _ in AXE_STATES])
def test_axe_finds_no_serious_barrier(open_page, run_page, axe, state):
    hash_, scheme, dialogs = state
    shown = open_page(run_page, hash_, color_scheme=scheme)
    shown.click(shown.id("backward", 2, 4))
    shown.press("m")
    shown.page.evaluate(axe)
    for dialog in dialogs:
        if dialog:
            shown.press(dialog)
        found = shown.page.evaluate("async () => (await axe.run()).violations")
        serious = [
            (one["id"], one["impact"], [node["html"][:150] for node in one["nodes"]][:3])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], json.dumps(serious, indent=1)
        if dialog:
            shown.press("Escape")


def test_the_viewer_can_be_used_by_keys_alone(shown):
    page = shown.page
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "() => { const e = document.activeElement; return e.getAttribute('aria-label') || e.innerText; }"
            )
        )
    for name in ("Search", "Show the whole run (0)", "forward", "Pin rank 0 (P)", "Step", "Hide rank 3 (H)"):
        assert any(one.endswith(name) for one in reached), name
    assert any(name.startswith("Pipeline diagram") for name in reached)
    page.locator(".canvas-box canvas").focus()
    shown.press("ArrowRight")
    page.wait_for_function("() => window.stagescopeViewer.selection.selected.value")
    shown.settle()
    assert page.locator("[role=status][aria-live=polite]").inner_text() != ""
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
