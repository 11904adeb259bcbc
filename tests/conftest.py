"""What holds for every test."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from stagescope.record import clock, recording

# A deadline is a timing: on a busy machine it fails by chance.
settings.register_profile("stagescope", deadline=None)
settings.load_profile("stagescope")

# Some shells export it, and output would be laid out for their width.
os.environ.pop("COLUMNS", None)

# Expected texts are English, whatever the language of the machine is.
os.environ["STAGESCOPE_LANG"] = "en"

# A script starts programs in the background with Ctrl-C ignored, and so would be what the tests start. Loading Polars
# hides that, because it catches the signal, until something restores the handler that Python found at its start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG_TESTS = Path(__file__).with_name("long_tests.txt")


def long_tests() -> frozenset[str]:
    """Return the tests that only `make test-exhaustive` runs, besides those with the marker."""
    lines = LONG_TESTS.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the long tests, before tests are deselected by markers."""
    names = long_tests()
    for item in items:
        if item.nodeid in names or item.nodeid.partition("[")[0] in names:
            item.add_marker("exhaustive")


@pytest.fixture
def just_booted(monkeypatch):
    """Let clock readings of recordings begin near 0, so that spans at a few nanoseconds are near them.

    Without it, such spans are implausible on a machine that has been up for more than a day.
    """
    booted_ns = clock.now_ns()

    def since_boot(read):
        def shifted():
            reading = read()
            return reading and reading._replace(monotonic_ns=reading.monotonic_ns - booted_ns)

        return shifted

    monkeypatch.setattr(recording, "read_anchor", since_boot(clock.read_anchor))
    monkeypatch.setattr(recording, "read_raw", since_boot(clock.read_raw))
