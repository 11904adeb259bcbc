"""stagescope sql: queries over the tables of a run and of its report."""

from __future__ import annotations

import json
import subprocess
import sys

import polars as pl
import pytest

from drawing import timeline_from_text
from places import DATA
from stagescope.api import analyze, read, sql
from stagescope.api.queries import REPORT_TABLES, RUN_TABLES
from stagescope.cli import main
from stagescope.vocabulary.errors import UsageError

RECORDINGS = DATA / "recordings" / "v1"


@pytest.fixture(scope="module")
def report():
    return analyze(read(RECORDINGS))


def test_the_result_is_that_of_the_table(report):
    counted = sql(report.timeline, "select kind, count(*) as n from spans group by kind order by kind")
    expected = report.timeline.spans["kind"].cast(pl.String).value_counts(name="n").sort("kind")
    assert counted.rows() == expected.rows()


@pytest.mark.parametrize("name", [*RUN_TABLES, *REPORT_TABLES])
def test_every_table_can_be_queried(name, report):
    frame = getattr(report.timeline, name) if name in RUN_TABLES else getattr(report, REPORT_TABLES[name][0])
    found = sql(report, f"-- all rows\nSELECT * FROM {name}")
    assert (found.height, found.columns) == (frame.height, frame.columns)


def test_tables_of_the_report_are_computed_for_a_timeline():
    timeline = timeline_from_text("F0 F1 . . B0 B1\n. F0 B0 F1 B1 .")
    found = sql(timeline, "with lost as (select * from idle) select count(*) as n from lost")
    assert found["n"].to_list() == [analyze(timeline).idle.height]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("drop table spans", "is not a query"),
        ("delete from spans", "is not a query"),
        ("", "is not a query"),
        ("select * from read_csv('/etc/hostname')", "reads the tables of the run, not files"),
        ("select * from \"read_csv\"('/etc/hostname')", "reads the tables of the run, not files"),
        ("select * from read_csv/**/('/etc/hostname')", "reads the tables of the run, not files"),
        ("select * from `scan_csv` --\n ('/etc/hostname')", "reads the tables of the run, not files"),
        ("select '\udc80'", "not valid Unicode"),
        ("select nothing from spans", "nothing"),
        ("select * from nowhere", "nowhere"),
        ("select 1; drop table spans", "one (and only one) statement"),
        ("select ((", "the query failed"),
    ],
)
def test_a_wrong_query_is_one_sentence(query, message, report):
    with pytest.raises(UsageError) as error:
        sql(report.timeline, query)
    assert message in str(error.value)


def test_few_rows_are_printed_and_the_rest_is_counted(capsys):
    query = "select rank, start_ns, name from spans order by rank, start_ns"
    assert main(["sql", str(RECORDINGS), query, "--rows", "2"]) == 0
    head, first, second, rest = capsys.readouterr().out.splitlines()
    assert head.split() == ["rank", "start_ns", "name"]
    assert (first.split()[0], second.split()[0]) == ("0", "0")
    assert rest.startswith("... and 376 more rows")


def test_fractions_have_no_digits_of_rounding(capsys):
    assert (
        main(
            [
                "sql",
                str(RECORDINGS),
                "select 0.1 + 0.2 as x, null as y, 123456789012345 as z from ranks limit 1",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.split() == ["x", "y", "z", "0.3", "123456789012345"]


def test_names_from_files_cannot_control_the_terminal(tmp_path, capsys):
    table = tmp_path / "spans.csv"
    table.write_text("rank,lane,kind,start_ns,end_ns,name\n0,compute,forward,0,5,a\x1b[2Jb\n")
    main(["sql", str(table), "select name from spans"])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_results_are_written_to_files(suffix, tmp_path, capsys):
    out = tmp_path / f"rows.{suffix}"
    words = ["sql", str(RECORDINGS), "select rank, world_size from ranks order by rank", "-o", str(out)]
    assert main(words) == 0
    assert capsys.readouterr().out == f"wrote {out}: 4 rows\n"
    assert main(words) == 1
    reading = {
        "csv": pl.read_csv,
        "parquet": pl.read_parquet,
        "json": lambda f: pl.DataFrame(json.loads(f.read_text())),
    }
    assert reading[suffix](out)["rank"].to_list() == [0, 1, 2, 3]


def test_an_unknown_suffix_is_refused_before_reading(tmp_path, capsys):
    assert main(["sql", str(tmp_path / "missing"), "select 1", "-o", str(tmp_path / "rows.xlsx")]) == 2
    assert "expected a name that ends with .csv, .json, .parquet" in capsys.readouterr().err


def test_a_query_without_an_end_is_given_up_at_its_limit(report, tmp_path):
    path = tmp_path / "spans.parquet"
    report.timeline.spans.write_parquet(path)
    endless = "with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t"
    # In a process of its own, with which the thread of the query ends.
    command = [sys.executable, "-m", "stagescope", "sql", str(path), endless, "--limit", "query=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "longer than the limit of 1 s" in done.stderr
    assert "--limit query=10" in done.stderr
