"""The page about schedules says what the catalog says."""

import doctest
import re
from pathlib import Path

from stagescope import schedules
from stagescope.schedules import SCHEDULES, catalog

PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"
BLOCK = re.compile(r"<!-- begin (?P<name>[\w-]+)[^>]*-->\n(?P<body>.*?)\n<!-- end (?P=name) -->", re.DOTALL)


def chunks(schedule):
    least = schedule.least_chunks
    return str(schedule.chunks) if least is None else f"{least} or more ({schedule.chunks})"


def catalog_table():
    head = ["| name | schedule | placement | chunks per rank | peak memory | source |", "| --- " * 6 + "|"]
    return "\n".join(head + [
        f"| `{each.name}` | {each.title} | {each.placement} | {chunks(each)} | {each.peak_memory} | {each.source} |"
        for each in SCHEDULES
    ])  # fmt: skip


def options_table():
    head = ["| schedule | option | default | meaning |", "| --- " * 4 + "|"]
    return "\n".join(head + [
        f"| `{each.name}` | `{option.name}` | `{option.default}` | {option.meaning} |"
        for each in SCHEDULES
        for option in each.options
    ])  # fmt: skip


def constraints_table():
    head = ["| schedule | needs | source |", "| --- " * 3 + "|"]
    return "\n".join(head + [
        f"| `{each.name}` | {constraint.needs} | {constraint.source} |"
        for each in SCHEDULES
        for constraint in each.constraints
    ])  # fmt: skip


def test_the_tables_are_those_of_the_catalog():
    tables = {block["name"]: block["body"] for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))}
    assert tables["schedules"] == catalog_table()
    assert tables["schedule-options"] == options_table()
    assert tables["schedule-constraints"] == constraints_table()


def test_the_examples_in_the_package_run():
    for module in (schedules, catalog):
        assert doctest.testmod(module).failed == 0
