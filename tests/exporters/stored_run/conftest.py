"""The run whose recordings several files of tests store."""

from dataclasses import replace

import pytest

from planted_runs import random_times, run
from recorded_runs import write_recordings
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
