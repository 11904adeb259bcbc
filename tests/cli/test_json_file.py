"""JSON files, which appear only when they are complete."""

import json

import pytest

from stagescope.cli.json_file import json_text, write_json
from stagescope.vocabulary.errors import OutputError


def test_replaces_a_file_only_with_force(tmp_path):
    path = tmp_path / "a.json"
    write_json({"a": 1}, path)
    with pytest.raises(OutputError, match="already exists"):
        write_json({"a": 2}, path)
    write_json({"a": 2}, path, force=True)
    assert json.loads(path.read_text()) == {"a": 2}
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_rejects_nan():
    with pytest.raises(ValueError, match="Out of range"):
        json_text({"a": float("nan")})
