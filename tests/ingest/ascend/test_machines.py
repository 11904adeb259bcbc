"""Machines and their clocks."""

from stagescope.ingest.ascend.machines import clocks_table, machines_of
from stagescope.ingest.ascend.metadata import Facts


def facts(rank, host, machine):
    return Facts(rank, "", host=host, machine=machine)


def test_hosts_with_equal_names_are_distinguished_by_id():
    every = [facts(0, "node", "1234567890"), facts(1, "node", "abc"), facts(2, "other", "x")]
    assert machines_of(every) == {"1234567890": "node (12345678)", "abc": "node (abc)", "x": "other"}


def test_every_machine_has_one_clock_of_unknown_error():
    clocks = clocks_table([facts(0, "a", "1"), facts(1, "a", "1"), facts(2, "b", "2"), facts(3, None, None)])
    columns = ("clock", "machine", "offset_ns", "error_lo_ns", "error_hi_ns", "method")
    assert clocks.select(columns).rows() == [
        ("1/wall", "a", 0, None, None, "wall clock, not aligned"),
        ("2/wall", "b", 0, None, None, "wall clock, not aligned"),
    ]
