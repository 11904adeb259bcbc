import pytest

from stagescope.api import ALIASES, WRITERS, write
from stagescope.model import empty_timeline
from stagescope.vocabulary.errors import OutputError
from synthetic import Shape, pipeline_timeline

OF_SPANS = [writer for writer in WRITERS if writer.with_progress is None]
"""Formats of a timeline; the others need its original files, and are tested in originals/."""

TIMELINE = pipeline_timeline(Shape(ranks=2, microbatches=2, steps=1))


def test_formats_have_distinct_names_and_suffixes():
    assert [writer.name for writer in WRITERS] == [
        "chrome",
        "pftrace",
        "svg",
        "png",
        "pdf",
        "html",
        "csv",
        "parquet",
        "perfetto-archive",
        "merged-chrome",
        "merged-pftrace",
    ]
    # A suffix alone is that of the first format with it, which needs no original files if another one does.
    assert len({writer.suffix for writer in OF_SPANS}) == len(OF_SPANS)
    assert set(ALIASES.values()) <= {writer.name for writer in WRITERS}
    assert all(writer.description for writer in WRITERS)


@pytest.mark.parametrize("writer", OF_SPANS, ids=lambda writer: writer.name)
@pytest.mark.parametrize("timeline", [TIMELINE, empty_timeline()], ids=["pipeline", "empty"])
def test_every_format_writes_the_file_that_it_reports(writer, timeline, tmp_path):
    written = write(timeline, tmp_path / f"out{writer.suffix}")
    assert written.path.stat().st_size == written.size_bytes > 0
    assert [path.name for path in tmp_path.iterdir()] == [f"out{writer.suffix}"]


@pytest.mark.parametrize("writer", OF_SPANS, ids=lambda writer: writer.name)
def test_format_that_is_named_overrules_the_suffix(writer, tmp_path):
    by_suffix = write(TIMELINE, tmp_path / f"out{writer.suffix.upper()}")
    by_name = write(TIMELINE, tmp_path / "out.bin", format=writer.name)
    assert by_suffix.size_bytes == by_name.size_bytes


def test_perfetto_is_another_name_for_pftrace(tmp_path):
    one = write(TIMELINE, tmp_path / "one", format="perfetto").path.read_bytes()
    assert one == write(TIMELINE, tmp_path / "two", format="pftrace").path.read_bytes()


@pytest.mark.parametrize(("path", "format_name"), [("run.docx", None), ("run", None), ("run.json", "docx")])
def test_unknown_format_is_refused_with_the_known_ones(tmp_path, path, format_name):
    with pytest.raises(OutputError, match="supported: chrome, pftrace, svg, png, pdf, html, csv, parquet"):
        write(TIMELINE, tmp_path / path, format=format_name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writer", OF_SPANS, ids=lambda writer: writer.name)
def test_existing_file_is_refused_in_every_format(writer, tmp_path):
    path = tmp_path / f"out{writer.suffix}"
    path.write_bytes(b"mine")
    with pytest.raises(OutputError) as refusal:
        write(TIMELINE, path)
    assert str(refusal.value) == f"{path} already exists"
    assert path.read_bytes() == b"mine"


def test_a_file_without_a_suffix_needs_a_format(tmp_path):
    with pytest.raises(
        OutputError, match="no export format: the file has no suffix; supported: chrome"
    ) as refused:
        write(empty_timeline(), tmp_path / "run")
    assert "--to" in refused.value.hint
