"""benchmarks/kineto_projection.py on files that are no traces."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kineto_projection.py"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", b"{}", "not a trace of torch.profiler: it has no list `traceEvents`"),
        ("a.json", b"[1]", "not a trace of torch.profiler: it has no list `traceEvents`"),
        ("a.json.gz", b"{}", "cannot be read: "),
    ],
)
def test_a_file_that_is_no_trace_ends_it_with_one_sentence(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    ended = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{path}: {reason}")
    assert len(ended.stderr.splitlines()) == 1
