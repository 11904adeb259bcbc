"""HTML: the viewer and a whole run in one page that opens offline and fetches nothing.

The page holds one script and one style sheet, both allowed by their SHA-256 in its content security policy. The data
are script elements of types that browsers do not execute (docs/viewer-format.md, "Page").
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from stagescope.exporters.writer import Writer, Written
from stagescope.viewer.run_data import ViewerData, shown_ranks, viewer_data, viewer_spans_alone
from stagescope.vocabulary.language import html_language

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.model import Timeline

ASSETS = files("stagescope.viewer") / "assets"
POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
HEAD = """\
<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="{generator}">
<title>{title}</title>
<style>{style}</style>
<script>{script}</script>
</head>
<body>
<div id="viewer"><p>This page draws a pipeline-parallel training run. It needs JavaScript.</p></div>
"""
JSON_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def write_html(
    timeline: Timeline, path: Path, extras: AnalysisLayers | None = None, *, other: Timeline | None = None
) -> Written:
    """Write the run and the results of its analysis as a page; return what was written.

    With `other`, an earlier run, the page opens with a comparison of the two, and `slice_count` includes its spans.
    Raises OSError if the file cannot be written.
    """
    data = viewer_data(timeline, extras)
    data_of_other = None if other is None else viewer_spans_alone(other)
    with path.open("wb") as file:
        file.writelines(_page(data, data_of_other))
    size_bytes = path.stat().st_size
    names = tuple(f"rank {rank}" for rank in shown_ranks(timeline))
    slice_count = timeline.spans.height + (0 if other is None else other.spans.height)
    return Written(path, size_bytes, slice_count, 0, names, ())


def asset(name: str) -> str:
    """Return the text of the built viewer: viewer.js or viewer.css."""
    return (ASSETS / name).read_text(encoding="utf-8")


def _page(data: ViewerData, other: ViewerData | None) -> Iterator[bytes]:
    script, style = asset("viewer.js"), asset("viewer.css")
    policy = POLICY.format(script=_digest(script), style=_digest(style))
    yield HEAD.format(
        language=html_language(),
        policy=html.escape(policy, quote=False),
        generator=html.escape(data.meta["generator"]),
        title=html.escape(data.meta["document_title"]),
        style=style,
        script=script,
    ).encode()
    yield from _blocks(data)
    if other is not None:
        yield from _blocks(other, "other-")
    yield b"</body>\n</html>\n"


def _blocks(data: ViewerData, before: str = "") -> Iterator[bytes]:
    """Yield the data of one run as script elements; `before` is a prefix of their names."""
    yield _json_block(f"{before}meta", data.meta)
    for name, value in data.objects.items():
        yield _json_block(f"{before}{name}", value)
    for name, blob in data.tables.items():
        digits = base64.b64encode(blob)
        kind = "application/octet-stream;base64"
        yield f'<script type="{kind}" id="stagescope-{before}{name}" data-length="{len(digits)}">'.encode()
        yield digits
        yield b"</script>\n"


def _json_block(name: str, value: Any) -> bytes:
    """Return a script element with JSON, escaped so that no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).translate(JSON_ESCAPES)
    return f'<script type="application/json" id="stagescope-{name}">{text}</script>\n'.encode()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _with_extras(extras: AnalysisLayers) -> Writer:
    return replace(WRITER, write=partial(write_html, extras=extras))


WRITER = Writer(
    "html", ".html", "the whole run in the viewer, one page that opens offline", write_html, _with_extras
)
