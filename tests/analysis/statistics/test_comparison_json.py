"""A comparison as JSON."""

import json

from planted_runs import Shape, random_times, run
from stagescope.analysis.statistics.comparison import DIFFERENCES, compare_runs
from stagescope.analysis.statistics.comparison_json import comparison_json


def test_json_round_trip_keeps_every_row():
    found = compare_runs(run(random_times(Shape(), 1)), run(random_times(Shape(microbatches=4, steps=1), 2)))
    data = json.loads(json.dumps(comparison_json(found), allow_nan=False))
    assert (data["schema"], data["confidence"], data["false_discovery_rate"]) == (2, 0.95, 0.05)
    assert len(data["differences"]) == found.table.height
    assert list(data["differences"][0]) == DIFFERENCES.names
    assert data["differences"][0]["low_ns"] is None
    assert len(data["diagnostics"]) == len(found.diagnostics)
