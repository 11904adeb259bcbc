"""Columns of records."""

from __future__ import annotations

import pickle

from stagescope.ingest.recording.columns import no_columns
from stagescope.ingest.recording.frames import Contents


def test_all_recordings_without_spans_share_their_empty_columns():
    received = [pickle.loads(pickle.dumps(Contents())) for _ in range(2)]  # noqa: S301 - our own
    assert all(each.spans is no_columns() for each in received)
