import html.parser
import re
from dataclasses import replace

import polars as pl

from drawing import timeline_from_text
from stagescope.export.picture import draw_picture
from stagescope.export.writers.html import write_html


def test_the_page_holds_the_picture_whole_and_nothing_that_runs_or_fetches(tmp_path):
    timeline = timeline_from_text("F0 F1 . . B0 - B1 -\n. F0 F1 B0 - B1 - .")
    written = write_html(timeline, tmp_path / "step.html")
    page = written.path.read_text(encoding="utf-8")
    picture = draw_picture(timeline)
    assert picture.svg.rstrip().endswith(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])
    assert (written.slice_count, written.size_bytes) == (8, len(page.encode()))
    tags = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, _: tags.append(tag)
    parser.feed(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    assert not re.search(r"(?:href|src)=|url\(['\"]?http|@import", page)
    assert "default-src 'none'" in page


def test_a_hostile_name_stays_text(tmp_path):
    timeline = timeline_from_text("F0 B0")
    named = timeline.ranks.with_columns(schedule=pl.lit("</title><script>alert(1)</script>"))
    hostile = replace(timeline, ranks=named)
    page = write_html(hostile, tmp_path / "step.html").path.read_text(encoding="utf-8")
    assert "<script" not in page
