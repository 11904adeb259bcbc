"""Stores recordings in parts and slices of any size, and compares what was stored with what is read at once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from planted_runs import Shape
from stagescope.api import read, run_division, store, storing_parts
from stagescope.api.reading import clock_report
from stagescope.clocks import report_json as clock_json
from stagescope.exporters.stored_run import write_stored_run, writer
from stagescope.model import TABLES
from stagescope.model.stored_run import FORMAT, VERSION, Manifest

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.exporters.stored_run import Stored

SHAPE = Shape(pipelines=4, stages=4, microbatches=4, steps=12)


def stored(recordings: Path, out: Path, monkeypatch, sizes: tuple[int, int], **where: Any) -> tuple[int, Any]:
    """Store recordings with parts and slices of these sizes; return how many there are, and what was stored."""
    parts = []
    divide = run_division.sliced_parts

    def counted(*arguments):
        divided = divide(*arguments)
        parts.extend(divided)
        return divided

    monkeypatch.setattr(storing_parts, "SPANS_OF_PART", sizes[0])
    monkeypatch.setattr(storing_parts, "SPANS_OF_SLICE", sizes[1])
    monkeypatch.setattr(storing_parts, "sliced_parts", counted)
    found = store(recordings, out=out, **where)
    return len(parts), found


def assert_as_read(recordings: Path, stored_run: Path, **facts: Any) -> None:
    """Assert that a stored run is the same as its recordings when they are read at once with these facts."""
    timeline, again = read(recordings, **facts), read(stored_run)
    for table in TABLES:
        assert getattr(again, table.name).equals(getattr(timeline, table.name)), table.name
    assert again.alignment == timeline.alignment


def assert_files_as_read(recordings: Path, stored_run: Stored, memory: Path, **facts: Any) -> None:
    """Assert that the files of a stored run are those of its recordings when they are read at once, to the byte."""
    timeline = read(recordings, **facts)
    memory.mkdir()
    empty = Manifest(FORMAT, VERSION, "stagescope", (), {}, aligned=True)
    assert stored_run.manifest.parts == write_stored_run(timeline, memory, empty).manifest.parts
    assert stored_run.diagnostics.equals(timeline.diagnostics)
    aligned = clock_json(clock_report(timeline)) if facts.get("align", True) else None
    assert stored_run.manifest.alignment == aligned


@contextmanager
def interrupted_after_spans(monkeypatch):
    """Interrupt what is stored during the block as soon as a file of spans is complete."""
    add = writer.Store.add

    def interrupted(self, part):
        add(self, part)
        if part.table == "spans":
            raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(writer.Store, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield
