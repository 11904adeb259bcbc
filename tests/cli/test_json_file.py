"""JSON files that are whole or not there."""

import json

import pytest

from stagescope.cli.json_file import json_text, write_json
from stagescope.vocabulary.errors import OutputError


def test_a_file_is_replaced_with_force_only(tmp_path):
    path = tmp_path / "a.json"
    write_json({"a": 1}, path)
    with pytest.raises(OutputError, match="already exists"):
        write_json({"a": 2}, path)
    write_json({"a": 2}, path, force=True)
    assert json.loads(path.read_text()) == {"a": 2}
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


def test_what_is_no_number_is_no_json():
    with pytest.raises(ValueError, match="Out of range"):
        json_text({"a": float("nan")})
