"""A slow machine: while the page opens and changes, every frame shows labels at the rows that they name."""

import json

import pytest

from synthetic import Shape, pipeline_timeline

pytestmark = pytest.mark.slow

# Runs at the end of every frame, after layout and before the frame is shown: what was drawn last, and the labels.
WATCH = """window.seenFrames = [];
let drawn = null;
const { setTransform } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.setTransform = function (...matrix) {
    const viewer = window.stagescopeViewer;
    if (this.canvas.closest('.canvas-box') && viewer) {
        const { rows, size } = viewer.display, { width, height } = size.peek();
        const { pinnedHeight } = rows.peek(), fixed = pinnedHeight <= 0.7 * height ? pinnedHeight : 0;
        const tops = new Map(rows.peek().placed.map((one) => [
            'rank ' + viewer.meta.ranks.rank[one.row],
            one.top < fixed ? one.top : one.top - viewer.display.scroll.peek(),
        ]));
        drawn = { tops, size: [width, height] };
    }
    return setTransform.apply(this, matrix);
};
const look = () => {
    const box = document.querySelector('.canvas-box canvas');
    if (!box) return;
    const top = box.getBoundingClientRect().top + 34;
    const wrong = [...document.querySelectorAll('.row-label')].flatMap((label) => {
        const [name, found] = [label.querySelector('.rank').textContent, label.getBoundingClientRect().top - top];
        const wanted = drawn?.tops.get(name);
        return wanted === undefined || Math.abs(wanted - found) > 1 ? [[name, wanted, found]] : [];
    });
    const { width, height } = box.parentElement.getBoundingClientRect();
    const [drawnWidth, drawnHeight] = drawn?.size ?? [0, 0];
    if (Math.abs(drawnWidth - width) >= 1 || Math.abs(drawnHeight - (height - 34)) >= 1)
        wrong.push(['size', [drawnWidth, drawnHeight], [width, height - 34]]);
    window.seenFrames.push({ wrong, labels: document.querySelectorAll('.row-label').length,
                             size: drawn?.size ?? null });
};
document.addEventListener('DOMContentLoaded', () => {
    const probe = document.createElement('div');
    probe.style.cssText = 'position:absolute;top:0;width:1px;height:1px;visibility:hidden';
    let observer = null;
    const frame = () => {
        if (document.querySelector('.canvas-box canvas')) {
            if (!probe.isConnected) document.body.append(probe);
            observer?.disconnect();
            observer = new ResizeObserver(look); // the newest observer is called last, after those of the page
            observer.observe(probe);
        }
        requestAnimationFrame(frame);
    };
    frame();
});"""
CHANGES = {
    "groups": "v.display.rowChoice.value = { ...v.display.rowChoice.peek(), group: 'machine' }",
    "pinned": "v.display.pin(3)",
    "table": "v.toggle('table')",
    "height": "v.display.setPitch(60)",
    "scrolled": "v.display.setScroll(120)",
    "panel": "v.display.panel.value = 'none'",
    "legend": "v.toggle('idle')",
}


@pytest.mark.parametrize("rate", [4, 20])
def test_every_frame_of_a_slow_machine_has_labels_at_their_rows(browser, make_page, rate):
    path = make_page("throttled", pipeline_timeline(Shape(ranks=8, microbatches=16, steps=6)))
    page = browser.new_page(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    page.set_default_timeout(120_000)
    page.add_init_script(WATCH)
    page.goto("about:blank")
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": rate})
    try:
        page.goto(path.as_uri())
        page.wait_for_function("() => document.querySelectorAll('.ledger li').length > 0")
        seen = {"opened": frames_of(page)}
        sizes = {tuple(frame["size"]) for frame in seen["opened"] if frame["labels"]}
        assert len(sizes) == 1, f"the picture was drawn in several sizes while the page opened: {sizes}"
        for name, change in CHANGES.items():
            page.evaluate(f"() => {{ const v = window.stagescopeViewer; {change}; }}")
            seen[name] = frames_of(page)
        page.set_viewport_size({"width": 1000, "height": 600})
        seen["window"] = frames_of(page)
    finally:
        page.close()
    assert all(any(frame["labels"] for frame in frames) for frames in seen.values())
    wrong = {name: [one["wrong"] for one in frames if one["wrong"]] for name, frames in seen.items()}
    assert not any(wrong.values()), json.dumps(wrong, indent=1)


def frames_of(page):
    """Return the frames since the last call, once three more have passed."""
    return page.evaluate(
        """async () => {
            for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
            await new Promise((done) => setTimeout(done, 0));
            return window.seenFrames.splice(0);
        }"""
    )
