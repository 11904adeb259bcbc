import os
import re

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.model import Timeline
from stagescope.viewer.page import write_html
from stagescope.viewer.run_data import viewer_data
from stagescope.viewer.run_name import document_title

FACTS = "Pipeline · 2 ranks · 1 micro-batch · 1 step"


@pytest.mark.parametrize(
    ("sources", "title"),
    [
        ([None, None], FACTS),
        (["runs/a.pftrace", "runs/a.pftrace"], f"a.pftrace · {FACTS} · runs/a.pftrace"),
        (["/data/run7/node0/rank0", "/data/run7/node1/rank1"], f"run7 · {FACTS} · /data/run7"),
        (["rank0.json", "rank1.json", "rank2.json"], f"rank0.json and 2 more · {FACTS}"),
        (["/data/rank0.json", "rank1.json"], f"rank0.json and 1 more · {FACTS}"),
    ],
)
def test_title_has_the_name_and_the_path_of_the_input(sources, title):
    assert document_title(FACTS, [source and source.replace("/", os.sep) for source in sources]) == title


def test_page_of_a_run_has_the_name_and_path_of_its_input_in_its_title(tmp_path):
    drawn: Timeline = timeline_from_text("F0 . . B0 -\n. F0 B0 - .")
    ranks = drawn.ranks.with_columns(source=pl.lit("runs/<7>/a.pftrace"))
    timeline = Timeline(drawn.spans, ranks, drawn.steps, drawn.clocks, drawn.diagnostics)
    page = tmp_path / "page.html"
    write_html(timeline, page)
    found = re.search("<title>(.*)</title>", page.read_text(encoding="utf-8"))
    assert found
    assert found[1] == f"a.pftrace · {FACTS} · runs/&lt;7&gt;/a.pftrace"
    assert viewer_data(drawn).meta["document_title"] == FACTS
