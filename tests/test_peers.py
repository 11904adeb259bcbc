"""Environments of foreign tools: created once, recreated if incomplete, and never silently missing."""

from __future__ import annotations

import subprocess
import zipfile

import pytest

import peers

DIST_INFO = "tiny_tool-1.0.dist-info"
FILES = {
    "tiny_tool.py": "def main():\n    print('tiny')\n",
    f"{DIST_INFO}/METADATA": "Metadata-Version: 2.1\nName: tiny-tool\nVersion: 1.0\n",
    f"{DIST_INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{DIST_INFO}/entry_points.txt": "[console_scripts]\ntiny-tool = tiny_tool:main\n",
    f"{DIST_INFO}/RECORD": "",
}


@pytest.fixture
def requirement(tmp_path, monkeypatch):
    """Return a requirement that pip can fulfil without a network."""
    monkeypatch.setattr(peers, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = tmp_path / "tiny_tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name, text in FILES.items():
            packed.writestr(name, text)
    return f"tiny-tool @ {wheel.as_uri()}"


def output_of(folder):
    done = subprocess.run([folder / "tiny-tool"], capture_output=True, text=True, check=True)
    return done.stdout


def test_an_environment_is_created_once_and_its_programs_run(requirement):
    folder = peers.peer_environment("tiny", requirement)
    made = (folder.parent / peers.MARKER).stat().st_mtime_ns
    assert output_of(folder) == "tiny\n"
    assert peers.peer_environment("tiny", requirement) == folder
    assert (folder.parent / peers.MARKER).stat().st_mtime_ns == made


def test_an_incomplete_environment_is_recreated(requirement):
    folder = peers.peer_environment("tiny", requirement)
    (folder.parent / peers.MARKER).unlink()
    (folder / "tiny-tool").unlink()
    assert output_of(peers.peer_environment("tiny", requirement)) == "tiny\n"


def test_an_uninstallable_requirement_skips_by_name_and_leaves_nothing(requirement, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(
        pytest.skip.Exception, match=r"needs no-such-tool==1\.0, which cannot be installed here"
    ):
        peers.peer_environment("none", "no-such-tool==1.0")
    assert [path.suffix for path in peers.CACHE.iterdir()] == [".lock"]
    assert requirement


def test_an_uninstallable_requirement_fails_in_continuous_integration(requirement, monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"no-such-tool==1\.0"):
        peers.peer_environment("none", "no-such-tool==1.0")
    assert requirement


def test_a_peer_does_not_see_our_packages(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert "PYTHONPATH" not in peers.peer_variables()
    assert peers.peer_variables(THREADS="1")["THREADS"] == "1"
