from __future__ import annotations

import pytest

from programs import require_program


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def install(directory, name):
    program = directory / name
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def test_returns_a_program_on_path(nothing_installed):
    program = install(nothing_installed, "node")
    assert require_program("node") == program


def test_finds_a_program_under_the_name_used_by_another_distribution(nothing_installed):
    program = install(nothing_installed, "google-chrome")
    assert require_program("chromium") == program


@pytest.mark.usefixtures("nothing_installed")
def test_missing_program_skips_the_test_and_names_it():
    with pytest.raises(pytest.skip.Exception, match="needs the program 'node'"):
        require_program("node")


@pytest.mark.usefixtures("nothing_installed")
def test_missing_program_fails_the_test_in_continuous_integration(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs the program 'node'"):
        require_program("node")
