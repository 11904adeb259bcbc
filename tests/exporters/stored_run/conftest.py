"""The run whose recordings several files of tests store, and what notes how stored runs are read."""

from dataclasses import replace

import pytest

from planted_runs import random_times, run
from recorded_runs import write_recordings
from stagescope.api import stored_runs
from stagescope.ingest.stored_run import read_stored_run, reader
from stored_parts import SHAPE


@pytest.fixture(scope="module")
def planted():
    """Return a run of 4 pipelines on 8 machines, whose replicas reduce gradients."""
    return run(replace(random_times(SHAPE), reduces=True))


@pytest.fixture
def recordings(planted, tmp_path):
    """Return the directory of its recordings."""
    write_recordings(planted, tmp_path / "recordings", SHAPE.stages, ranks_per_machine=2)
    return tmp_path / "recordings"


@pytest.fixture
def steps_read(monkeypatch):
    """Return a list of the steps of stored runs that are read from now on, None for all."""
    found = []

    def read_and_note(directory, steps=None):
        found.append(steps)
        return read_stored_run(directory, steps)

    for module in (reader, stored_runs):
        monkeypatch.setattr(module, "read_stored_run", read_and_note)
    return found
