"""Spans tables from CSV and Parquet."""

import re
from datetime import date

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stagescope
from drawing import timeline_from_text
from stagescope.ingest.table.reader import CSV, PARQUET
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.pipelines import find_pipelines
from stagescope.vocabulary.errors import InputError, TableError
from stagescope.vocabulary.limits import limits_in_force
from synthetic import Shape, pipeline_timeline

MINIMAL = "rank,lane,kind,start_ns,end_ns\n1,compute,forward,0,5\n0,compute,backward,5,15\n"


def rows(timeline, *columns):
    return timeline.spans.select(columns).rows()


def diagnosed(timeline) -> list[Diagnostic]:
    return [Diagnostic(**row) for row in timeline.diagnostics.to_dicts()]


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str | bytes):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.mark.parametrize("reader", [CSV, PARQUET], ids=lambda reader: reader.name)
def test_reading_a_written_table_is_the_identity(reader, tmp_path):
    drawn = timeline_from_text("F0 F1 B0 - B1\n. F0 - B0 -", step=3).spans
    path = tmp_path / f"spans{reader.patterns[0][1:]}"
    (drawn.write_csv if reader is CSV else drawn.write_parquet)(path)
    timeline = reader.read([path])
    assert_frame_equal(timeline.spans, drawn)
    assert timeline.steps.rows() == [(3, 0, 0, 5_000), (3, 1, 1_000, 5_000)]
    assert timeline.ranks.select("rank", "source").rows() == [(0, str(path)), (1, str(path))]
    assert timeline.diagnostics.is_empty()


def test_missing_nullable_columns_and_unknown_columns_are_accepted(write):
    text = MINIMAL.replace("end_ns\n", "end_ns,color\n").replace("5\n", "5,red\n")
    timeline = CSV.read([write("a.csv", text)])
    assert rows(timeline, "rank", "kind", "stage", "name") == [
        (0, "backward", None, None),
        (1, "forward", None, None),
    ]


def test_a_table_without_steps_is_step_0_with_a_note(write):
    path = write("a.csv", MINIMAL)
    timeline = CSV.read([path])
    assert timeline.spans["step"].to_list() == [0, 0]
    assert diagnosed(timeline) == [
        Diagnostic("info", "no span has a step; all are taken as step 0", str(path), code="steps.assumed")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank,lane\n0,compute\n", "table spans lacks the column(s) kind, start_ns, end_ns"),
        (MINIMAL.replace("5,15", "5,1.5"), "table spans, column end_ns: expected Int64 in ns, found '1.5'"),
        (
            MINIMAL.replace("0,compute", "many,compute"),
            "table spans, column rank: expected Int32, found 'many'",
        ),
        (
            MINIMAL.replace("0,compute", "0,gpu"),
            "table spans, column lane: expected one of compute, comm, host, found 'gpu'",
        ),
    ],
    ids=["columns", "time", "rank", "lane"],
)
def test_a_table_of_other_content_is_refused(write, text, message):
    path = write("a.csv", text)
    with pytest.raises(TableError) as refused:
        CSV.read([path])
    assert str(refused.value) == f"{path}: {message}"


def test_a_parquet_file_of_other_content_is_refused(tmp_path):
    path = tmp_path / "loss.parquet"
    pl.DataFrame({"epoch": [1], "loss": [0.5]}).write_parquet(path)
    with pytest.raises(TableError) as refused:
        PARQUET.read([path])
    assert str(refused.value) == f"{path}: table spans lacks the column(s) rank, lane, kind, start_ns, end_ns"


def test_a_truncated_parquet_file_is_damaged(tmp_path):
    path = tmp_path / "spans.parquet"
    timeline_from_text("F0 B0").spans.write_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"spans\.parquet: not a readable table: "):
        PARQUET.read([path])


@pytest.mark.parametrize(
    "text", ["rank,lane,kind,start_ns,end_ns\n", "rank,lane,kind,start_ns,end_ns\n0,compute,,1,2\n"]
)
def test_a_table_without_usable_rows_is_refused(write, text):
    path = write("a.csv", text)
    with pytest.raises(InputError) as refused:
        CSV.read([path])
    assert str(refused.value) == f"{path}: the spans table has no usable row"


def test_rows_without_required_values_are_omitted_and_counted(write):
    path = write(
        "a.csv",
        MINIMAL.replace("lane,", "step,lane,").replace(",compute", ",0,compute") + ",0,host,other,,\n",
    )
    timeline = CSV.read([path])
    assert timeline.spans.height == 2
    assert diagnosed(timeline) == [
        Diagnostic(
            "error",
            "rows without a value in rank, lane, kind, start_ns, end_ns; they were omitted",
            str(path),
            code="rows.incomplete",
        )
    ]


def test_several_tables_are_one_timeline(write):
    one = write("a.csv", MINIMAL)
    other = write("b.csv", MINIMAL.replace("1,compute", "3,compute").replace("0,compute", "2,compute"))
    timeline = CSV.read([other, one])
    assert timeline.spans["rank"].to_list() == [0, 1, 2, 3]
    assert timeline.ranks["source"].to_list() == [str(one), str(one), str(other), str(other)]


def test_two_tables_of_one_rank_are_refused(write):
    one, other = write("a.csv", MINIMAL), write("b.csv", MINIMAL)
    with pytest.raises(InputError) as refused:
        CSV.read([one, other])
    assert str(refused.value) == f"two recordings of rank 0: {one} and {other}"


def test_an_invalid_table_next_to_a_valid_one_is_an_error_in_diagnostics(write):
    other, good = write("loss.csv", "epoch,loss\n1,0.5\n"), write("spans.csv", MINIMAL)
    timeline = CSV.read([other, good])
    assert timeline.spans.height == 2
    assert timeline.is_partial
    assert diagnosed(timeline)[0] == Diagnostic(
        "error",
        f"not read: {other}: table spans lacks the column(s) rank, lane, kind, start_ns, end_ns",
        str(other),
        code="file.unreadable",
    )


@pytest.mark.parametrize(
    ("name", "head", "is_csv"),
    [
        ("spans.csv", b"rank,lane,kind", True),
        ("spans.txt", b'"rank","lane"', True),
        ("windows.csv", b"start_ns\r\n", True),
        ("loss.csv", b"epoch,loss\n", True),
        ("loss.txt", b"epoch,loss\n", False),
        ("letter.txt", b"Dear ranks, ", False),
        ("trace.csv", b'{"traceEvents": []}', False),
        ("zeros.csv", b"rank,\0\0\0", False),
        ("empty.csv", b"", False),
        ("spans.csv", b"PAR1\x15\x04\x15", False),
    ],
)
def test_a_csv_is_recognized_by_its_header(tmp_path, name, head, is_csv):
    assert CSV.recognizes(tmp_path / name, head) is is_csv


@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("empty", ["", "  ", ",,,,", " ,,, ,"])
def test_lines_without_any_value_are_ignored(write, empty, line_end):
    header, *others = MINIMAL.splitlines()
    text = "".join(line + line_end for line in (header, empty, others[0], empty, others[1], empty, empty))
    timeline = CSV.read([write("a.csv", text)])
    assert_frame_equal(timeline.spans, CSV.read([write("b.csv", MINIMAL)]).spans)
    assert [row.code for row in diagnosed(timeline)] == ["steps.assumed"]


def test_a_byte_order_mark_does_not_hide_the_first_column(write):
    assert CSV.read([write("a.csv", b"\xef\xbb\xbf" + MINIMAL.encode())]).spans.height == 2


LONGER = 'rank,lane,kind,start_ns,end_ns,name\n0,compute,forward,0,5,\n0,compute,backward,5,15,"a,b"\n'


@pytest.mark.parametrize(
    ("text", "height", "found"),
    [
        (LONGER, 2, []),
        (LONGER + "0,compute,for\0ard,15,20,\n\0\0\0\n", 2, [("error", "rows.incomplete", 2)]),
        (LONGER + "0,compute,forward,15,20\n", 2, [("error", "rows.incomplete", 1)]),
        (LONGER[:-1], 2, [("warning", "input.truncated", 1)]),
        (LONGER + LONGER.partition("\n")[2], 2, [("error", "rows.repeated", 2)]),
    ],
    ids=["intact", "NUL", "short row", "no end", "repeated rows"],
)
def test_what_a_csv_file_reveals_to_be_damaged_is_omitted_and_counted(write, text, height, found):
    timeline = CSV.read([write("a.csv", text)])
    assert timeline.spans.height == height
    damage = [
        (row.severity, row.code, row.count) for row in diagnosed(timeline) if row.code != "steps.assumed"
    ]
    assert damage == found


def test_zeros_at_the_end_of_a_csv_file_are_omitted_and_counted(write):
    timeline = CSV.read([write("a.csv", LONGER + 5000 * "\0")])
    assert timeline.spans.height == 2
    assert [(row.code, row.message) for row in diagnosed(timeline) if row.severity == "error"] == [
        ("rows.incomplete", "5,000 NUL characters at the end; they were omitted")
    ]


def test_a_hole_in_a_csv_file_is_refused_as_a_line_beyond_the_limit(write):
    path = write("a.csv", LONGER + 5000 * "\0" + "\n0,compute,forward,15,20,\n")
    with limits_in_force({"string": 4096}), pytest.raises(InputError, match="limit of 4 KiB"):
        CSV.read([path])


def test_repeated_rows_of_parquet_are_used_once(tmp_path):
    drawn = timeline_from_text("F0 F1 B0 B1", step=3).spans
    path = tmp_path / "a.parquet"
    pl.concat([drawn, drawn[1:3]]).write_parquet(path)
    timeline = PARQUET.read([path])
    assert_frame_equal(timeline.spans, drawn)
    assert [(row.code, row.count) for row in diagnosed(timeline)] == [("rows.repeated", 2)]


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("rank", pl.concat_list("rank"), "List(Int32)"),
        ("rank", pl.lit(date(2026, 11, 1)), "Date"),
        ("kind", pl.lit(date(2026, 11, 1)), "Date"),
        ("pp", pl.struct("rank"), "Struct"),
        ("step", pl.lit(1.5), "1.5"),
        ("step", pl.lit(value=True), "Boolean"),
        ("name", pl.concat_list(pl.lit("x")), "List(String)"),
        ("end_ns", pl.lit("x" * 1000), "and 922 more characters"),
    ],
)
def test_columns_of_types_that_no_column_has_are_refused(tmp_path, name, values, found):
    path = tmp_path / "a.parquet"
    timeline_from_text("F0 B0", step=3).spans.with_columns(values.alias(name)).write_parquet(path)
    with pytest.raises(TableError, match=f"column {name}: expected .*{re.escape(found)}"):
        PARQUET.read([path])


def test_dates_with_a_time_are_nanoseconds(tmp_path):
    drawn = timeline_from_text("F0 B0", step=3).spans
    path = tmp_path / "a.parquet"
    times = [(pl.col(name) // 1000).cast(pl.Datetime("us")).alias(name) for name in ("start_ns", "end_ns")]
    drawn.with_columns(times).write_parquet(path)
    assert_frame_equal(PARQUET.read([path]).spans, drawn)


def test_invalid_utf8_is_damaged(write):
    with pytest.raises(InputError, match="not a readable table"):
        CSV.read([write("a.csv", MINIMAL.encode() + b"0,compute,\xff\xfe,1,2\n")])


PLACED = """rank,pp,dp,lane,kind,stage,microbatch,start_ns,end_ns
0,0,0,compute,forward,0,0,0,5
1,0,1,compute,forward,0,0,0,5
1,,1,host,other,,,0,5
2,1,0,compute,forward,1,0,5,9
3,1,1,compute,forward,1,0,5,9
"""


def test_coordinates_in_columns_are_those_of_the_ranks(write):
    timeline = CSV.read([write("a.csv", PLACED)])
    assert timeline.ranks.select("rank", "pp", "dp", "tp").rows() == [
        (0, 0, 0, None), (1, 0, 1, None), (2, 1, 0, None), (3, 1, 1, None),
    ]  # fmt: skip
    assert find_pipelines(timeline.spans, timeline.ranks).rows() == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_several_values_of_a_coordinate_within_a_rank_are_refused(write):
    path = write("a.csv", PLACED.replace("1,,1,host", "1,0,7,host"))
    with pytest.raises(TableError) as refused:
        CSV.read([path])
    assert str(refused.value) == f"{path}: rank 1 has several values of dp: 1, 7"


def test_coordinate_that_is_no_number_is_refused(write):
    path = write("a.csv", PLACED.replace("0,0,0,compute", "0,zero,0,compute"))
    with pytest.raises(TableError) as refused:
        CSV.read([path])
    assert str(refused.value) == f"{path}: table ranks, column pp: expected Int32, found 'zero'"


def test_dates_beyond_64_bits_in_nanoseconds_are_refused(tmp_path):
    late = pl.col("start_ns", "end_ns").mul(0).add(10**18).cast(pl.Datetime("us"))
    pipeline_timeline(Shape(2, 3, 1)).spans.with_columns(late).write_parquet(tmp_path / "spans.parquet")
    with pytest.raises(TableError, match="1000000000000000000 us since 1970"):
        stagescope.read(tmp_path / "spans.parquet")


def test_a_column_that_is_there_twice_is_refused(write):
    header, *rows = MINIMAL.splitlines()
    text = "\n".join([f"{header},end_ns", *(f"{row},5" for row in rows), ""])
    with pytest.raises(InputError, match="the header has the column end_ns more than once"):
        CSV.read([write("a.csv", text)])


def test_times_that_floating_point_has_rounded_are_reported(tmp_path):
    spans = timeline_from_text("F0 B0", step=3).spans
    found = []
    for start in (0, 1_763_600_000_123_456_789):
        path = tmp_path / f"{start}.parquet"
        times = (pl.col("start_ns", "end_ns") + start).cast(pl.Float64)
        spans.with_columns(times).write_parquet(path)
        found.append([(row.code, row.message.split(",")[-1]) for row in diagnosed(PARQUET.read([path]))])
    warning = ("timestamps.rounded", " where times of this size are multiples of 256 ns")
    assert found == [[], [warning, warning]]
