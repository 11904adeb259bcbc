"""Reports in NVIDIA's own format, exported by a script in the place of nsys."""

import os
import sys

import pytest

import stagescope
from fuzz.samples import nsight_reports
from stagescope.ingest.nsight import native_report
from stagescope.vocabulary.errors import InputError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake nsys is a shell script")


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """Install a fake nsys with the given commands; its arguments are in the file `arguments`."""

    def nsys(*commands):
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "nsys"
        lines = ["#!/bin/sh", f'printf "%s\\n" "$@" > {tmp_path / "arguments"}', *commands]
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return nsys


@pytest.fixture
def runs(tmp_path):
    """Return a folder with the exports, and one with reports in NVIDIA's format."""
    exports, reports = tmp_path / "exports", tmp_path / "reports"
    exports.mkdir()
    reports.mkdir()
    nsight_reports(exports)
    for path in exports.iterdir():
        (reports / f"{path.stem}.nsys-rep").write_bytes(f"NSYS {path.stem}".encode())
    return exports, reports


def test_a_report_is_read_through_its_export(runs, nsys, tmp_path):
    exports, reports = runs
    nsys(f'cp {exports}/$(basename "$5") "$5"')
    found = stagescope.read(reports, align=False)
    assert found.spans.equals(stagescope.read(exports, align=False).spans)
    assert found.ranks["source"].to_list() == [str(reports / f"rank{rank}.nsys-rep") for rank in (0, 1)]
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[:4] == ["export", "--type", "sqlite", "--output"]
    assert arguments[5] == str(reports / "rank1.nsys-rep")
    assert not os.path.exists(arguments[4])


def test_names_are_arguments_and_never_commands(runs, nsys, tmp_path):
    odd = tmp_path / "-o; touch hacked.nsys-rep"
    odd.write_bytes(b"NSYS")
    nsys(f'cp {runs[0]}/rank0.sqlite "$5"')
    assert stagescope.read(odd).spans.height
    assert (tmp_path / "arguments").read_text().splitlines()[5] == str(odd)
    assert not list(tmp_path.rglob("hacked"))


def test_the_error_without_nsys_states_the_command(runs, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = runs[1] / "rank0.nsys-rep"
    with pytest.raises(InputError) as error:
        stagescope.read(path)
    assert str(error.value) == (
        f"{path}: a .nsys-rep file is NVIDIA's own format, and the program nsys that can export it is not installed "
        "here"
    )
    assert "nsys export --type sqlite rank0.nsys-rep" in error.value.hint


def test_the_error_of_a_failed_export_quotes_what_nsys_printed(runs, nsys):
    nsys("echo 'Processing...'", "printf 'bad \\033[31mfile\\n' >&2", "exit 3")
    with pytest.raises(InputError, match=r"nsys export failed \(Processing... bad \[31mfile\)"):
        stagescope.read(runs[1] / "rank0.nsys-rep")


def test_an_export_that_writes_nothing_or_never_ends_is_an_error(runs, nsys, monkeypatch):
    nsys("exec sleep 60")
    monkeypatch.setattr(native_report, "EXPORT_SECONDS", 0.2)
    with pytest.raises(InputError, match="nsys export was stopped after 0 s"):
        stagescope.read(runs[1] / "rank0.nsys-rep")
    monkeypatch.setattr(native_report, "EXPORT_SECONDS", 60)
    program = os.environ["PATH"].split(os.pathsep)[0]
    with open(os.path.join(program, "nsys"), "w") as file:
        file.write("#!/bin/sh\n")
    with pytest.raises(InputError, match="nsys export ended without an error and wrote nothing"):
        stagescope.read(runs[1] / "rank0.nsys-rep")


def test_a_report_with_its_export_beside_it_is_read_once(runs, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for path in runs[1].iterdir():
        (runs[0] / path.name).write_bytes(path.read_bytes())
    found = stagescope.read(runs[0])
    assert found.ranks["rank"].to_list() == [0, 1]
    notes = found.diagnostics.filter(code="input.not_read")
    assert notes["message"].to_list() == ["not read: its export is read instead"] * 2
