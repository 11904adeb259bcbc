"""The distributions install and work outside the checkout."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import stagescope
from drawing import timeline_from_text
from stagescope.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "stagescope"
RECORDING = ROOT / "tests" / "data" / "recordings" / "v1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*words, cwd):
    """Run a program outside the checkout and return its output; fail with all of it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build both distributions, the wheel from the sdist, as an index would serve them."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Return the folder of programs of an environment with only the wheel and the dependencies it declares.

    The dependencies are links to the distributions of the running environment: copying them takes longer than all
    tests of this file.
    """
    home = tmp_path_factory.mktemp("installed")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    programs = home / "venv" / "bin"
    options = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-deps")
    run(sys.executable, "-m", "pip", "--python", programs / "python", "install", *options, built[0], cwd=home)
    (packages,) = home.glob("venv/lib/python*/site-packages")
    for dependency in declared_dependencies(metadata_of(built[0]).get_all("Requires-Dist")):
        for name in {file.parts[0] for file in dependency.files} - {"..", "__pycache__"}:
            (packages / name).symlink_to(dependency.locate_file(name))
    return programs


def metadata_of(wheel):
    path = f"stagescope-{stagescope.__version__}.dist-info/METADATA"
    return email.message_from_bytes(zipfile.ZipFile(wheel).read(path))


def declared_dependencies(lines):
    """Return the distributions that these requirements and their own name; fail if a version does not match."""
    found, pending = {}, list(lines)
    while pending:
        requirement = Requirement(pending.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        distribution = metadata.distribution(requirement.name)
        assert requirement.specifier.contains(distribution.version, prereleases=True), str(requirement)
        if distribution.name not in found:
            found[distribution.name] = distribution
            pending += distribution.requires or []
    return found.values()


def test_the_wheel_contains_every_file_of_the_package(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert {path.relative_to(ROOT / "src").as_posix() for path in files} - names == set()


def test_the_wheel_contains_types_hook_and_license(built):
    names = zipfile.ZipFile(built[0]).namelist()
    assert "stagescope/py.typed" in names
    assert "stagescope/record/hook/sitecustomize.py" in names
    licenses = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert licenses == {"LICENSE", "src/stagescope/viewer/assets/viewer.licenses.txt"}
    assert [name for name in names if name.endswith(".dist-info/sboms/sbom.cdx.json")] != []


def test_building_again_elsewhere_and_later_gives_the_same_wheel(built, tmp_path):
    """The fixture builds the wheel from the unpacked sdist, this test from the checkout, whose files are older."""
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    run(*command, cwd=tmp_path)
    (again,) = tmp_path.glob("*.whl")
    assert again.read_bytes() == built[0].read_bytes()


def test_the_wheel_contains_only_the_package(built):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(built[0]).namelist()}
    assert tops == {"stagescope", f"stagescope-{stagescope.__version__}.dist-info"}


def test_the_wheel_has_the_version_of_the_package(built):
    message = metadata_of(built[0])
    assert message["Version"] == stagescope.__version__
    assert message["Requires-Python"] == ">=3.10"


def test_the_sdist_contains_what_building_and_testing_need(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"Makefile", ".ci/run", "constraints.txt", "README.md", "docs/formats.md", "tests/drawing.py"}
    needed |= {"tools/install.sh", "tools/write_docs.py", "src/stagescope/py.typed"}
    assert needed - names == set()


def test_the_installed_command_lists_its_commands(installed, tmp_path):
    printed = run(installed / "stagescope", "--help", cwd=tmp_path)
    for command in COMMANDS:
        assert f"\n  {command.name} " in printed


@pytest.fixture
def recorded(tmp_path):
    """Return the oldest recording kept among the tests, or a table of spans where there is none yet."""
    if RECORDING.is_dir():
        return RECORDING
    table = tmp_path / "spans.csv"
    timeline_from_text("F0 . . . B0 -\n. F0 B0 - . .").spans.write_csv(table)
    return table


def test_the_installed_command_shows_a_recording(installed, recorded, tmp_path):
    printed = run(installed / "stagescope", "show", "--no-color", recorded, cwd=tmp_path)
    assert "rank" in printed.lower()
    assert "bubble" in printed.lower()


@pytest.mark.exhaustive
def test_type_checkers_use_the_types_of_the_installed_package(installed, tmp_path):
    user = tmp_path / "user.py"
    user.write_text("from stagescope.vocabulary.kinds import LANES\nanswer: int = LANES\n", encoding="utf-8")
    options = ("--cache-dir", os.devnull, "--python-executable", installed / "python")
    words = (sys.executable, "-m", "mypy", *options, user)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "error: Incompatible types in assignment" in done.stdout, done.stdout + done.stderr
