"""Train with old and new releases of each framework on CPUs, with and without recording, and compare.

    python -m tools.compatibility.matrix                       every row of matrix.toml
    python -m tools.compatibility.matrix --only torch-2.13.0   the rows of one environment
    python -m tools.compatibility.matrix --only torch-2.13.0/1F1B

Each row must end with the same exit code and the same losses and parameters to the bit, and its recording must have
each action and each message exactly once. Environments are made with pip where they are missing, which downloads
several GB for the whole matrix.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import stagescope
from stagescope import StagescopeError

from .comparison import (
    Outcome,
    counts,
    differing_outcomes,
    read_plans,
    wrong_actions,
    wrong_messages,
)
from .environments import (
    CACHE,
    TRAININGS,
    InstallationError,
    Row,
    find_python,
    read_environments,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class Options(NamedTuple):
    """Where environments and results are, which Python makes new environments, and how long a run may take."""

    environments: Path
    reused: Path | None
    results: Path
    python: str
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 1 if a row fails."""
    given = _parse(arguments)
    rows = rows_of(read_environments())
    if given.only:
        known = {name for row in rows for name in (row.name, row.environment.name)}
        if unknown := sorted(set(given.only) - known):
            sys.exit(f"unknown row or environment: {', '.join(unknown)}")
        rows = [row for row in rows if {row.name, row.environment.name} & set(given.only)]
    with tempfile.TemporaryDirectory(prefix="stagescope-matrix-") as scratch:
        options = Options(
            given.environments.resolve(), given.reuse, (given.results or Path(scratch)).resolve(), given.python,
            given.timeout,
        )  # fmt: skip
        failed = [row.name for row in rows if not report(row, options)]
    return 1 if failed else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help="only these rows, or all rows of these environments")
    add("--environments", type=Path, default=CACHE, metavar="DIR", help=f"make environments in DIR ({CACHE})")
    add("--reuse", type=Path, metavar="DIR", help="use DIR/ENVIRONMENT as it is where it exists")
    add("--results", type=Path, metavar="DIR", help="keep outputs and recordings in DIR/ROW")
    add("--python", default=sys.executable, help="the Python of new environments (this one)")
    add("--timeout", type=float, default=300, metavar="SECONDS", help="the limit for one training (300)")
    return parser.parse_args(arguments)


def report(row: Row, options: Options) -> bool:
    """Run a row, print its line, and return whether it is in order."""
    try:
        python = find_python(row.environment, options.environments, options.reused, options.python)
    except InstallationError as error:
        line, faults = row.name, [str(error)]
    else:
        line, faults = examine(row, python, options)
    verdict = "FAILED: " + "; ".join(faults) if faults else "ok"
    print(f"{line}: {verdict}", flush=True)  # noqa: T201  # the output of a script
    return not faults


def examine(row: Row, python: Path, options: Options) -> tuple[str, list[str]]:
    """Return the facts of a row and what is wrong with it."""
    folder = options.results / row.name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    training = [str(python), str(TRAININGS / row.environment.script), *row.arguments]
    recording = folder / "recording"
    recorder = [sys.executable, "-m", "stagescope", "run", "--force", "-o", str(recording), "--"]
    plain = execute(training, folder, "plain", options.seconds)
    recorded = execute([*recorder, *training], folder, "recorded", options.seconds)
    faults = differing_outcomes(plain, recorded)
    plans = read_plans(plain.output)
    numbers = "nothing recorded"
    try:
        spans = stagescope.read(recording).spans
    except StagescopeError as error:
        faults.append(f"the recording cannot be read: {error}")
    else:
        actions, messages, sends = counts(spans)
        numbers = f"{actions} actions, {messages} of {sends} messages matched"
        faults += wrong_actions(spans, plans) + (wrong_messages(spans, plans) if plans else [])
    is_equal = plain.values == recorded.values and plain.values
    codes = f"exit codes {plain.exit_code} and {recorded.exit_code}"
    line = f"{row.name}: {plain.versions}: {codes}, values equal: {'yes' if is_equal else 'no'}, {numbers}"
    return line, faults


def execute(command: Sequence[str], folder: Path, name: str, seconds: float) -> Outcome:
    """Run a command in a folder, where its output is kept as NAME.out and NAME.err."""
    output, errors = folder / f"{name}.out", folder / f"{name}.err"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=err, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in (output, errors)]
    return Outcome(code, *texts)


if __name__ == "__main__":
    sys.exit(main())
