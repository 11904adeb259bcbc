"""Every test named in docs/reliability.md exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_fault_in_the_table_names_an_existing_test():
    named = 0
    for row in TABLE.splitlines():
        module = ""
        for path, name in re.findall(r"`([\w/]*\.py)?::(\w+)`", row):
            module = path or module
            assert f"def {name}(" in (TESTS / module).read_text(encoding="utf-8"), f"{module}::{name}"
            named += 1
    assert named > 20


def test_table_has_every_fault():
    rows = re.findall(r"^\| (\d+)(?:, (\d+))? \|", TABLE, re.MULTILINE)
    assert {int(number) for row in rows for number in row if number} >= {*range(1, 41)}
