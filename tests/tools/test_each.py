from __future__ import annotations

import subprocess
import sys

from places import TOOLS

EACH = TOOLS / "each.sh"


def each(folder, *scripts):
    command = ["sh", str(EACH), sys.executable, "benchmark", *scripts]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_runs_every_script_and_names_it(tmp_path):
    (tmp_path / "a.py").write_text("print('one', flush=True)", encoding="utf-8")
    (tmp_path / "b.py").write_text("print('two', flush=True)", encoding="utf-8")
    done = each(tmp_path, "a.py", "b.py")
    assert done.stdout.splitlines() == ["== a.py", "one", "== b.py", "two", "Ran 2 benchmarks."]
    assert done.returncode == 0


def test_failing_script_does_not_stop_the_others_but_fails_the_run(tmp_path):
    (tmp_path / "a.py").write_text("raise SystemExit(3)", encoding="utf-8")
    (tmp_path / "b.py").write_text("print('two', flush=True)", encoding="utf-8")
    done = each(tmp_path, "a.py", "b.py")
    assert "two" in done.stdout
    assert done.stderr == "stagescope: failed: a.py\n"
    assert done.returncode == 1


def test_reports_an_empty_list_without_failing(tmp_path):
    done = each(tmp_path, "benchmarks/*.py")
    assert done.stdout == "There is no benchmark to run yet.\n"
    assert done.returncode == 0
