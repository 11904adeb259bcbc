"""Recordings that cannot fit into memory are refused before they are read."""

import pytest

from places import DATA
from stagescope.api import read
from stagescope.ingest import memory_need
from stagescope.vocabulary.errors import InputError

RECORDINGS = DATA / "recordings" / "v1"


@pytest.fixture
def small_machine(tmp_path, monkeypatch):
    """A machine with 32 KiB of memory and 16 KiB of swap."""
    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal:   32 kB\nMemFree:   1 kB\nSwapTotal:   16 kB\n", encoding="ascii")
    monkeypatch.setattr(memory_need, "MEMORY", facts)
    monkeypatch.setattr(memory_need, "CGROUPS", (tmp_path / "max", tmp_path / "limit"))
    return tmp_path


@pytest.mark.usefixtures("small_machine")
def test_too_many_spans_are_refused_with_a_way_out():
    with pytest.raises(
        InputError, match=r"about \d+ spans, which need at least .* this machine has 48 KiB"
    ) as found:
        read(RECORDINGS)
    assert "--steps 0:10" in found.value.hint


@pytest.mark.usefixtures("small_machine")
def test_some_steps_and_a_stated_limit_are_read():
    assert read(RECORDINGS, steps="1:2").spans.height == read(RECORDINGS, limits={"spans": 1000}).spans.height


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 48 * 1024), ("8192", 8192 + 16 * 1024), ("?", 48 * 1024)]
)
def test_a_container_may_have_less(limit, expected, small_machine):
    small_machine.joinpath("max").write_text(f"{limit}\n", encoding="ascii")
    assert memory_need.memory_bytes() == expected


@pytest.mark.parametrize("facts", ["", "MemTotal: many kB\nSwapTotal: 0 kB", "MemTotal: 32 kB"])
def test_an_unknown_memory_refuses_nothing(facts, small_machine):
    small_machine.joinpath("meminfo").write_text(facts, encoding="ascii")
    assert memory_need.memory_bytes() is None
    assert read(RECORDINGS).spans.height
