import base64
import gzip
import hashlib
import html.parser
import json
import re
from dataclasses import replace

import polars as pl
import pytest

from column_blobs import read_blob
from drawing import timeline_from_text
from stagescope.api import write
from stagescope.exporters.layers import AnalysisLayers
from stagescope.model import empty_timeline
from stagescope.viewer.page import WRITER, asset, write_html

TIMELINE = timeline_from_text("F0 F1 . . B0 - B1 -\n. F0 F1 B0 - B1 - .")
HOSTILE = "</script><img src=x onerror=alert(1)><!-- \u2028\u2029 & \0 \u202e" + "x" * 10_000


class Page(html.parser.HTMLParser):
    """The tags of a page, and the text of its scripts, as a browser's parser sees them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.blocks, self.open = [], {}, None
        self.attributes = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attributes = dict(attrs)
        if tag in ("script", "style"):
            self.open = attributes.get("id", tag)
            self.attributes[self.open] = attributes
            self.blocks[self.open] = ""
        if attributes.get("http-equiv"):
            self.policy = attributes["content"]

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.open = None

    def handle_data(self, data):
        if self.open is not None:
            self.blocks[self.open] += data


def page_of(timeline, tmp_path, **options):
    written = write_html(timeline, tmp_path / "run.html", **options)
    text = written.path.read_text(encoding="utf-8")
    assert written.size_bytes == len(text.encode())
    return Page(text), written


def test_the_page_holds_every_span(tmp_path):
    page, written = page_of(TIMELINE, tmp_path)
    digits = page.blocks["stagescope-spans"]
    assert page.attributes["stagescope-spans"]["data-length"] == str(len(digits))
    columns, _ = read_blob(base64.b64decode(digits))
    assert len(columns["start"]) == written.slice_count == TIMELINE.spans.height
    assert written.track_names == ("rank 0", "rank 1")


def test_only_the_one_script_and_the_one_style_sheet_may_run_and_nothing_is_fetched(tmp_path):
    page, _ = page_of(TIMELINE, tmp_path)

    def digest(block):
        return base64.b64encode(hashlib.sha256(page.blocks[block].encode()).digest()).decode()

    assert f"script-src 'sha256-{digest('script')}'" in page.policy
    assert f"style-src 'sha256-{digest('style')}'" in page.policy
    assert page.policy.startswith("default-src 'none'")
    assert "unsafe" not in page.policy
    runnable = [name for name, attributes in page.attributes.items() if "type" not in attributes]
    assert sorted(runnable) == ["script", "style"]
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    assert not re.search(r"@import|url\(\s*['\"]?http|src:\s*url", page.blocks["style"])


def test_hostile_text_stays_data(tmp_path):
    hostile = replace(
        TIMELINE,
        spans=TIMELINE.spans.with_columns(name=pl.lit(HOSTILE)),
        ranks=TIMELINE.ranks.with_columns(schedule=pl.lit(HOSTILE[:55]), machine=pl.lit(HOSTILE)),
    )
    page, written = page_of(hostile, tmp_path, extras=AnalysisLayers(objects={"ledger": {"name": HOSTILE}}))
    plain, _ = page_of(TIMELINE, tmp_path)
    extra = page.tags.count("script") - plain.tags.count("script")
    assert extra == 1  # the ledger's block
    assert "img" not in page.tags
    assert json.loads(page.blocks["stagescope-meta"])["ranks"]["machine"] == [HOSTILE, HOSTILE]
    assert json.loads(page.blocks["stagescope-ledger"]) == {"name": HOSTILE}
    columns, _ = read_blob(base64.b64decode(page.blocks["stagescope-spans"]))
    assert columns["name"][0] == HOSTILE
    assert "\u2028" not in written.path.read_text(encoding="utf-8")


def test_second_run_is_stored_under_prefixed_names(tmp_path):
    other = timeline_from_text("F0 - B0 -")
    other = replace(other, ranks=other.ranks.with_columns(machine=pl.lit(HOSTILE)))
    page, written = page_of(TIMELINE, tmp_path, other=other)
    alone, _ = page_of(TIMELINE, tmp_path)
    of_other, _ = page_of(other, tmp_path)
    assert {name: page.blocks[name] for name in alone.blocks} == alone.blocks
    assert set(page.blocks) - set(alone.blocks) == {"stagescope-other-meta", "stagescope-other-spans"}
    assert page.blocks["stagescope-other-spans"] == of_other.blocks["stagescope-spans"]
    meta = json.loads(of_other.blocks["stagescope-meta"])
    assert json.loads(page.blocks["stagescope-other-meta"]) == {**meta, "sections": []}
    assert written.slice_count == TIMELINE.spans.height + other.spans.height
    assert (page.policy, "img" in page.tags) == (alone.policy, False)


def test_the_built_viewer_is_small_and_cannot_end_its_own_block():
    sizes = [len(gzip.compress(asset(name).encode(), 9)) for name in ("viewer.js", "viewer.css")]
    assert sum(sizes) <= 100_000
    assert "</script" not in asset("viewer.js").lower()
    assert "<!--" not in asset("viewer.js")
    assert "</style" not in asset("viewer.css").lower()
    assert "\r" not in asset("viewer.js") + asset("viewer.css")


def test_an_empty_run_makes_a_page(tmp_path):
    page, written = page_of(empty_timeline(), tmp_path)
    assert (written.slice_count, written.track_names) == (0, ())
    assert json.loads(page.blocks["stagescope-meta"])["span_count"] == 0


def test_what_analysis_found_is_asked_for_only_by_a_format_that_shows_it(tmp_path):
    def extras():
        raise AssertionError("asked")

    write(TIMELINE, tmp_path / "run.csv", extras=extras)
    with pytest.raises(AssertionError, match="asked"):
        write(TIMELINE, tmp_path / "run.html", extras=extras)
    found = AnalysisLayers(objects={"ledger": {"parts": []}})
    write(TIMELINE, tmp_path / "run.html", extras=lambda: found)
    page = Page((tmp_path / "run.html").read_text(encoding="utf-8"))
    assert json.loads(page.blocks["stagescope-meta"])["sections"][-1] == "ledger"
    assert WRITER.with_extras is not None
