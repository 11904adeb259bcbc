"""stagescope export."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

from drawing import timeline_from_text
from stagescope.api import ALIASES, WRITERS
from stagescope.cli import main
from stagescope.cli.export import command

KINETO = Path(__file__).parents[1] / "data/kineto/GPipe"


@pytest.fixture
def spans(tmp_path):
    steps = [timeline_from_text("F0 B0\nF0 B0", step=step, origin_ns=step * 10_000).spans for step in (0, 1)]
    path = tmp_path / "spans.csv"
    pl.concat(steps).write_csv(path)
    return path


def test_the_suffix_decides_the_format(spans, tmp_path, capsys):
    out = tmp_path / "run.json"
    assert main(["export", str(spans), "-o", str(out)]) == 0
    assert json.loads(out.read_text())["traceEvents"]
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(f"wrote {out}: ")
    assert line.endswith(f" {out.stat().st_size} bytes")


@pytest.mark.parametrize("name", [*(writer.name for writer in WRITERS), *ALIASES])
def test_writes_every_format_and_lists_it_in_the_help(spans, tmp_path, name):
    out = tmp_path / "run.out"
    needs_originals = any(writer.name == name and writer.with_progress for writer in WRITERS)
    run = KINETO if needs_originals else spans
    assert main(["export", str(run), "--to", name, "-o", str(out)]) == 0
    assert out.stat().st_size > 0
    assert name in CliRunner().invoke(command, ["--help"]).output


def test_exports_a_single_step(spans, tmp_path):
    out = tmp_path / "step1.csv"
    assert main(["export", str(spans), "--step", "1", "-o", str(out)]) == 0
    assert pl.read_csv(out)["step"].unique().to_list() == [1]


def test_a_missing_step_is_an_error_and_writes_nothing(spans, tmp_path, capsys):
    out = tmp_path / "step7.csv"
    assert main(["export", str(spans), "--step", "7", "-o", str(out)]) == 1
    assert capsys.readouterr().err == "stagescope: step 7 was not recorded; recorded: 0-1\n"
    assert not out.exists()


def test_an_unknown_format_is_an_error(spans, tmp_path, capsys):
    assert main(["export", str(spans), "--to", "docx", "-o", str(tmp_path / "run.docx")]) == 1
    assert capsys.readouterr().err.startswith("stagescope: unknown export format 'docx'; supported: chrome, ")


def test_replaces_an_existing_file_only_with_force(spans, tmp_path, capsys):
    out = tmp_path / "run.csv"
    out.write_text("mine")
    assert main(["export", str(spans), "-o", str(out)]) == 1
    assert out.read_text() == "mine"
    assert "already exists" in capsys.readouterr().err
    assert main(["export", str(spans), "-o", str(out), "--force"]) == 0
    assert out.read_text() != "mine"


def test_exports_partial_data_and_exits_with_1(spans, tmp_path, capsys):
    spans.write_text(spans.read_text() + "0,compute,forward,0,0,0,9,,,,5000,4000,,,\n")
    out = tmp_path / "run.csv"
    assert main(["export", str(spans), "-o", str(out)]) == 1
    assert pl.read_csv(out).height == 8
    text, err = capsys.readouterr()
    assert err.startswith("stagescope: partial data: ")
    assert "error: spans end before they start" in text


def test_a_picture_has_the_requested_size_step_and_ranks(spans, tmp_path, capsys):
    out = tmp_path / "figure.svg"
    words = ["--step", "1", "--ranks", "1", "--size", "700x400", "-o", str(out)]
    assert main(["export", str(spans), *words]) == 0
    svg = out.read_text()
    assert 'width="700" height="400"' in svg
    assert "1 of 2 ranks" in svg
    assert "step 1" in svg
    assert "rank 0" not in svg
    assert capsys.readouterr().out.startswith(f"wrote {out}: 2 slices")
    picture = out.with_suffix(".png")
    assert main(["export", str(spans), *words[:-1], str(picture)]) == 0
    assert picture.read_bytes()[16:24] == (700).to_bytes(4, "big") + (400).to_bytes(4, "big")


@pytest.mark.parametrize("size", ["", "0", "700x", "x300", "700X300", "-5", "7e2", "700x300x2", "123456"])
def test_rejects_a_malformed_size(spans, tmp_path, capsys, size):
    assert main(["export", str(spans), "--size", size, "-o", str(tmp_path / "run.svg")]) == 2
    expected = f"stagescope: --size {size!r}: expected WIDTH or WIDTHxHEIGHT in pixels, such as 1600x900\n"
    assert capsys.readouterr().err == expected


def test_rejects_a_size_for_a_format_that_is_not_a_picture(spans, tmp_path, capsys):
    assert main(["export", str(spans), "--size", "700", "-o", str(tmp_path / "run.csv")]) == 2
    assert (
        capsys.readouterr().err
        == "stagescope: --ranks, --size, --width, --title, --no-title, --legend and --font-size only apply to "
        "pictures (svg, png, pdf), not to csv\n"
    )


def drawn(spans, tmp_path, *words):
    """Return the picture that `export` writes with these options."""
    out = tmp_path / "figure.svg"
    assert main(["export", str(spans), "--force", "-o", str(out), *words]) == 0
    return out.read_text()


def place_of(svg, text):
    """Return x and y of a text of a picture."""
    found = re.search(rf'<text class="\w+" x="([\d.]+)" y="([\d.]+)"[^>]*>{text}<', svg)
    return float(found[1]), float(found[2])


def test_a_figure_has_the_stated_title_or_none(spans, tmp_path):
    assert "font-weight" in drawn(spans, tmp_path)
    assert place_of(drawn(spans, tmp_path, "--title", "Fig. 1"), "Fig. 1")[1] == 28
    bare = drawn(spans, tmp_path, "--no-title")
    assert "font-weight" not in bare
    assert place_of(bare, "forward")[1] < 28


def test_the_legend_is_where_it_is_asked_for(spans, tmp_path):
    above, below = (drawn(spans, tmp_path, "--legend", place) for place in ("above", "below"))
    axis = "time since the start of the step"
    assert place_of(above, "forward")[1] < place_of(above, axis + r" \(\w+\)")[1]
    assert place_of(below, "forward")[1] > place_of(below, axis + r" \(\w+\)")[1]
    assert ">forward<" not in drawn(spans, tmp_path, "--legend", "none")


def test_a_narrow_figure_keeps_the_size_of_its_text(spans, tmp_path):
    svg = drawn(spans, tmp_path, "--width", "3.3in", "--font-size", "6")
    width, units = (
        float(re.search(text, svg)[1]) for text in (r' width="([\d.]+)" height', r'viewBox="0 0 ([\d.]+)')
    )
    assert width == pytest.approx(3.3 * 96, abs=0.1)
    # 12 units are the size of the text: 6 points are 8 pixels.
    assert 12 * width / units == pytest.approx(8, abs=0.01)
    picture = tmp_path / "figure.png"
    assert main(["export", str(spans), "--width", "84mm", "-o", str(picture)]) == 0
    assert int.from_bytes(picture.read_bytes()[16:20], "big") == round(84 / 25.4 * 300)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--width", "3.3"], "--width '3.3': expected a number and in, cm, mm, pt or px, such as 3.3in"),
        (["--width", "3in", "--size", "700"], "give only one of --size and --width"),
        (["--title", "a", "--no-title"], "give only one of --title and --no-title"),
        (["--font-size", "1"], "a font size of 1 points: expected 3 to 72"),
        (["--width", "1in"], "a picture of 96 is too small for 2 ranks, which need 214x173"),
    ],
)
def test_rejects_a_look_that_is_not_possible(spans, tmp_path, capsys, words, message):
    assert main(["export", str(spans), *words, "-o", str(tmp_path / "run.svg")]) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"stagescope: {message}"


@pytest.mark.parametrize("name", ["csv", "pftrace", "png"])
def test_writes_to_standard_output_what_it_writes_to_a_file(spans, tmp_path, capsysbinary, monkeypatch, name):
    out = tmp_path / "out"
    assert main(["export", str(spans), "--to", name, "-o", str(out)]) == 0
    capsysbinary.readouterr()
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(spans), "--to", name, "-o", "-"]) == 0
    printed = capsysbinary.readouterr()
    assert printed.out == out.read_bytes()
    assert (printed.err == b"") is (name != "png")  # which shows one step, as a diagnostic states
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "spans.csv"]


def test_diagnostics_leave_standard_output_to_the_file(spans, capsys):
    spans.write_text(spans.read_text() + "0,compute,forward,0,0,0,9,,,,5000,4000,,,\n")
    assert main(["export", str(spans), "--to", "csv", "-o", "-"]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 9
    assert "error: spans end before they start" in err


def test_standard_output_needs_a_format_and_binary_ones_no_terminal(spans, capsys, monkeypatch):
    assert main(["export", str(spans), "-o", "-"]) == 1
    assert "no export format" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["export", str(spans), "--to", "parquet", "-o", "-"]) == 2
    assert "parquet is not text" in capsys.readouterr().err


def test_other_outputs_refuse_standard_output(spans, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["report", str(spans), "--html"], ["store", str(spans), "-o"]):
        assert main([*words, "-"]) == 1
        assert "this cannot be written to standard output (-)" in capsys.readouterr().err
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run.csv"], "8 rows, "),
        (["run.csv", "--table", "ranks"], "2 rows, "),
        (["run.parquet", "--table", "steps"], "4 rows, "),
        (["run.svg"], "4 slices, "),
    ],
)
def test_the_summary_counts_what_the_format_has(spans, tmp_path, capsys, words, text):
    out = tmp_path / words[0]
    assert main(["export", str(spans), "-o", str(out), *words[1:]]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {out}: {text}")


def test_one_slice_is_not_a_plural(tmp_path, capsys):
    path = tmp_path / "spans.csv"
    timeline_from_text("F0").spans.write_csv(path)
    for name, text in (("run.csv", "1 row, "), ("run.svg", "1 slice, ")):
        assert main(["export", str(path), "-o", str(tmp_path / name)]) == 0
        assert capsys.readouterr().out.startswith(f"wrote {tmp_path / name}: {text}")
