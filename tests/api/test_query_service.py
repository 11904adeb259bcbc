"""Queries from the page: the results of `stagescope sql`, in a process that can be ended."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stagescope.api import query_service, simulate, sql
from stagescope.api.query_process import MOST_CELL, MOST_ROWS
from stagescope.api.query_service import QueryService
from stagescope.vocabulary.errors import UsageError

RUN = simulate("1f1b", ranks=2, microbatches=4).timeline
ENDLESS = "with recursive r(n) as (select 1 union all select n + 1 from r) select count(*) from r"


@pytest.fixture
def service():
    return QueryService(lambda: RUN, limits={"query": 120})


@pytest.mark.parametrize(
    "query",
    [
        "select rank, kind, count(*) as n from spans group by rank, kind order by rank, kind",
        "select rank, start_ns, end_ns - start_ns as length, peer from spans order by start_ns, rank",
        "select step, bubble_fraction from report_steps order by step",
    ],
)
def test_answers_are_those_of_the_command(service, query):
    expected = sql(RUN, query)
    answer = service.answer(query)
    assert [column["name"] for column in answer["columns"]] == expected.columns
    assert answer["count"] == expected.height
    assert answer["rows"] == [
        [None if value is None else str(value) for value in row] for row in expected.rows()
    ]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("drop table spans", "is not a query"),
        ("copy spans to '/tmp/x'", "is not a query"),
        ("create table x as select 1", "is not a query"),
        ("", "is not a query"),
        ("with a as (select 1) delete from spans", "unsupported"),
        ("select 1; drop table spans", "only one"),
        ("select * from spans into outfile '/tmp/x'", "parser error"),
        ("select * from read_csv('/etc/passwd')", "not files"),
        ("select * from `scan_ndjson`('/etc/passwd')", "not files"),
        ("select * from '/etc/passwd'", "was not found"),
        ("select * from nothing", "was not found"),
        ("select '\ud800' as x", "not valid Unicode"),
    ],
)
def test_everything_but_reading_the_tables_of_the_run_is_one_sentence(service, query, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        service.answer(query)
    assert "\n" not in str(caught.value)


def test_large_results_are_cut_off_and_counted(service):
    count = RUN.spans.height**4
    answer = service.answer(
        "select a.rank from spans a cross join spans b cross join spans c cross join spans d"
    )
    assert (len(answer["rows"]), answer["count"]) == (MOST_ROWS, count)
    (row,) = service.answer(f"select '{'x' * 2000}' as text")["rows"]
    assert row == ["x" * MOST_CELL]


def test_integers_beyond_the_numbers_of_a_browser_are_exact(service):
    answer = service.answer("select cast(9007199254740993 as bigint) as n")
    assert answer["rows"] == [["9007199254740993"]]
    assert answer["columns"] == [{"name": "n", "type": "number"}]


def test_an_endless_query_is_given_up_and_its_process_ended(monkeypatch):
    started = []
    popen = subprocess.Popen

    def start(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(query_service.subprocess, "Popen", start)
    service = QueryService(lambda: RUN, limits={"query": 3})
    with pytest.raises(UsageError, match="longer than the limit of 3 s"):
        service.answer(ENDLESS)
    assert started[0].poll() is not None


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is bounded on Linux only")
def test_a_query_that_needs_too_much_memory_ends_alone():
    service = QueryService(lambda: RUN, limits={"query": 120})
    query = (
        "select s0.rank, s1.start_ns from spans s0 cross join spans s1 cross join spans s2 cross join spans s3"
        " cross join spans s4 cross join spans s5 cross join spans s6 cross join spans s7 cross join spans s8"
    )
    with pytest.raises(UsageError, match=r"too much memory|longer than the limit"):
        service.answer(query)
    assert service.answer("select count(*) as n from spans")["rows"] == [[str(RUN.spans.height)]]


def test_the_engine_ends_with_the_process_that_asked(tmp_path):
    RUN.spans.select("rank").write_ipc(tmp_path / "spans.arrow")
    engine = subprocess.Popen(
        [sys.executable, query_service.ENGINE, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    engine.stdin.write(b'"' + ENDLESS.encode() + b'"\n')
    engine.stdin.flush()
    time.sleep(1)
    assert engine.poll() is None
    engine.stdin.close()  # as when the server is gone
    assert engine.wait(60) != 0
    engine.stdout.close()


def test_the_run_is_read_by_the_first_query_and_again_when_it_has_changed():
    reads, state = [], ["a"]

    def read():
        reads.append(state[0])
        return RUN

    service = QueryService(read, lambda: state[0])
    assert reads == []
    for _ in range(2):
        service.answer("select 1 as n")
    state[0] = "b"
    service.answer("select 1 as n")
    assert reads == ["a", "b"]


def test_queries_of_several_pages_run_one_after_the_other(service):
    results = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(service.answer(f"select {n} as n")["rows"]))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [[["0"]], [["1"]], [["2"]]]
