"""The display of a Timeline in a notebook: the viewer, inline and interactive.

With anywidget (the extra `notebook`) the browser gets the page as data of a widget, and the notebook's file stays
small. Without it the page is part of the cell's output, which survives a conversion to HTML. In both cases it runs in
a sandboxed frame, so names in a trace cannot reach the notebook.
"""

from __future__ import annotations

import html
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.page import write_html

if TYPE_CHECKING:
    from stagescope.model import Timeline

HEIGHT_PX = 640
MOST_SPANS = 500_000
"""A page of more than this, about 4 MB, makes the notebook slow."""

TOO_MANY = (
    "<p>{count:,} spans are too many for a notebook. In a terminal: <code>stagescope open PATH</code>. "
    "As a page: <code>stagescope.export(timeline, 'run.html')</code>.</p>"
)
FRAME = (
    '<iframe sandbox="allow-scripts" style="width:100%;height:{height}px;border:0" title="stagescope" '
    'srcdoc="{page}"></iframe>'
)
WIDGET_SCRIPT = """\
export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts");
    frame.title = "stagescope";
    frame.style.cssText = `width:100%;height:${model.get("height")}px;border:0`;
    frame.srcdoc = new TextDecoder().decode(model.get("page"));
    el.append(frame);
  },
};
"""


def inline_view(timeline: Timeline) -> tuple[dict[str, Any], dict[str, Any]] | dict[str, Any]:
    """Return the MIME bundle of a timeline for IPython: a widget if anywidget is installed, else HTML."""
    if timeline.spans.height > MOST_SPANS:
        return {"text/html": TOO_MANY.format(count=timeline.spans.height)}
    page = _page(timeline)
    widget = _widget(page)
    if widget is None:
        return _frame(page)
    bundle, metadata = widget._repr_mimebundle_()
    # The text of the timeline is more informative than the widget's.
    return {kind: data for kind, data in bundle.items() if kind != "text/plain"}, metadata


def _page(timeline: Timeline) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_html(timeline, Path(folder, "run.html"), gather_extras(timeline)).path.read_bytes()


def _frame(page: bytes) -> dict[str, Any]:
    text = html.escape(page.decode())
    return {"text/html": FRAME.format(height=HEIGHT_PX, page=text)}


def _widget(page: bytes) -> Any:
    """Return a widget that shows a page, None without anywidget."""
    try:
        import anywidget  # noqa: PLC0415 - an extra
        import traitlets  # noqa: PLC0415 - comes with it
    except ImportError:
        return None
    traits = {
        "_esm": WIDGET_SCRIPT,
        "page": traitlets.Bytes(page).tag(sync=True),
        "height": traitlets.Int(HEIGHT_PX).tag(sync=True),
    }
    return type("TimelineView", (anywidget.AnyWidget,), traits)()
