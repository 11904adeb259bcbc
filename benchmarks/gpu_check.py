"""The check on a GPU: what device timing relies on, how accurate it is, and what it costs. `make gpu-check` runs this.

Builds the extension of native/ for this Python if it can. Needs only the project and a torch for the GPU:
PYTHONPATH=src python benchmarks/gpu_check.py [--parts AF]. Each part runs in a process of its own and at most ten
minutes pass. Prints a table, writes it with the device, the driver, torch and the date into docs/accuracy.md and all
values into a JSON file, and exits with status 1 if a value is not as expected. Without a GPU it reports this and exits
with status 0.

--dry-run runs all parts on a simulated device, whose times mean nothing: it shows that the check itself works.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
import traceback
from pathlib import Path
from typing import Any

from gpu.measures import SETTINGS, Measure, Unavailable
from gpu.parts import PARTS, Part

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- gpu-check:begin -->", "<!-- gpu-check:end -->"
HEAD = ("part", "measured", "value", "unit", "expected", "result")


def main() -> int:
    arguments = parse_arguments()
    if arguments.part is not None:
        return run_part(arguments.part, dry_run=arguments.dry_run)
    if arguments.describe:
        print(json.dumps(describe(load_torch(dry_run=arguments.dry_run))))
        return 0
    facts = ask_process(["--describe"], {}, 120.0, dry_run=arguments.dry_run)
    if not facts.get("device"):
        print("torch finds no GPU: nothing was measured.")
        return 0
    build_extension()
    print(f"{facts['date']}, {facts['device']}, driver {facts['driver']}, torch {facts['torch']}", flush=True)
    results = []
    for part in PARTS:
        if part.letter in arguments.parts.upper():
            results.append(result := check(part, dry_run=arguments.dry_run))
            print_result(part, result)
    arguments.json.write_text(json.dumps({"facts": facts, "parts": results}, indent=1), encoding="utf-8")
    print(f"\nAll values: {arguments.json}")
    bad = {"failed"} if arguments.dry_run else {"failed", "refuted"}
    if arguments.dry_run:
        print("The device is simulated: the values mean nothing.")
    else:
        document = arguments.document
        document.write_text(
            with_table(document.read_text(encoding="utf-8"), facts, results), encoding="utf-8"
        )
    return int(any(result["result"] in bad for result in results))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check what device timing relies on, on this machine's GPU.")
    parser.add_argument("--dry-run", action="store_true", help="run all parts on a simulated device")
    letters = "".join(part.letter for part in PARTS)
    parser.add_argument(
        "--parts", default=letters, metavar="LETTERS", help=f"parts to run (default: {letters})"
    )
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"), help="file for all values")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=[part.letter for part in PARTS], help=argparse.SUPPRESS)
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts.upper()) - set(letters))
    if unknown or not arguments.parts:
        parser.error(f"--parts takes letters of {letters}, and not {''.join(unknown) or 'none'}")
    return arguments


def build_extension() -> None:
    """Build the extension in C for this Python beside the sources, unless it is there or cannot be built."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if not (ROOT / "src" / "stagescope" / "record" / f"_plain{suffix}").exists():
        subprocess.run([sys.executable, ROOT / "tools" / "build_hook.py"], check=False)


def check(part: Part, *, dry_run: bool) -> dict[str, Any]:
    """Run a part in each of its environments, each in a process of its own."""
    measures: list[dict[str, Any]] = []
    problems = {}
    for environment in part.environments:
        found = ask_process(["--part", part.letter], environment, part.limit_s, dry_run=dry_run)
        measures += found.get("measures", [])
        problems |= {name: found[name] for name in ("failed", "skipped") if name in found}
    if problems:
        (result, reason), *_ = sorted(problems.items())
    else:
        refuted = not all(measure["is_expected"] for measure in measures)
        result, reason = ("refuted", part.refuted) if refuted else ("as expected", part.as_expected)
    return {"part": part.letter, "name": part.name, "result": result, "meaning": reason, "measures": measures}


def ask_process(
    arguments: list[str], environment: dict[str, str], limit_s: float, *, dry_run: bool
) -> dict[str, Any]:
    """Return what a process of this script prints on its last line."""
    command = [sys.executable, __file__, *arguments, *(["--dry-run"] if dry_run else [])]
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
    try:
        done = subprocess.run(
            command, env={**inherited, **environment}, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failed": f"did not end within {limit_s:g} s"}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"failed": f"the process ended with status {done.returncode} and printed no result"}


def run_part(letter: str, *, dry_run: bool) -> int:
    """Print the measures of a part as JSON."""
    (part,) = (part for part in PARTS if part.letter == letter)
    if dry_run:
        SETTINGS.shorten()
    try:
        measures: list[Measure] = part.measure(load_torch(dry_run=dry_run and letter != "J"))
        print(json.dumps({"measures": [measure.row() for measure in measures]}))
    except Unavailable as error:
        print(json.dumps({"skipped": str(error)}))
    except Exception as error:  # noqa: BLE001  # each part is reported, whatever happens to it
        traceback.print_exc()
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}))
    return 0


def load_torch(*, dry_run: bool) -> Any:
    """Return torch, the simulated one with `dry_run`, or None if it is not installed."""
    if dry_run:
        from gpu import fake_torch  # noqa: PLC0415 - replaces torch

        return fake_torch.install()
    try:
        import torch  # noqa: PLC0415 - the check also runs without torch
        import torch.distributed  # noqa: PLC0415 - same
    except ImportError:
        return None
    return torch


def describe(torch: Any) -> dict[str, Any]:
    """Return date, device, driver and version of torch."""
    if torch is None or not torch.cuda.is_available():
        return {}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(),
        "driver": driver(),
        "torch": torch.__version__,
        "hip": str(getattr(torch.version, "hip", None) or ""),
    }


def driver() -> str:
    """Return the version of NVIDIA's driver, "unknown" where its tool is not installed."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.partition("\n")[0].strip()


def rows_of(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one row for each measure of a part, or one that states why there are none."""
    measures = [Measure(*(row[name] for name in Measure._fields)) for row in result["measures"]]
    rows = [
        (
            result["part"],
            one.name,
            f"{one.value:.4g}",
            one.unit,
            one.expectation,
            "as expected" if one.is_expected else "NOT AS EXPECTED",
        )
        for one in measures
    ]
    if result["result"] in ("failed", "skipped"):
        rows.append((result["part"], result["name"], "", "", "", f"{result['result']}: {result['meaning']}"))
    return rows


def print_result(part: Part, result: dict[str, Any]) -> None:
    """Print the measures of a part, and what they mean."""
    print(f"\n{part.letter}  {part.name}: {result['result']}")
    for _, name, value, unit, expected, outcome in rows_of(result):
        print(f"   {name:58} {value:>10} {unit:5} {expected:14} {outcome}")
    print(f"   {result['meaning']}", flush=True)


def with_table(text: str, facts: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """Return a document whose part between the markers is the table of this run."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    title = f"{facts['date']}, {facts['device']}, driver {facts['driver']}, torch {facts['torch']}"
    lines = [BEGIN, title, "", "| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    lines += ["| " + " | ".join(row) + " |" for result in results for row in rows_of(result)]
    return before + "\n".join([*lines, END]) + after


if __name__ == "__main__":
    sys.exit(main())
