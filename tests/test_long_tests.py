"""The list of the tests that `make test` leaves out."""

from conftest import LONG_TESTS, long_tests


def test_every_listed_test_exists():
    root = LONG_TESTS.parents[1]
    missing = []
    for name in long_tests():
        file, _, test = name.partition("[")[0].partition("::")
        path = root / file
        if not path.exists() or f"def {test}(" not in path.read_text(encoding="utf-8"):
            missing.append(name)
    assert missing == []


def test_the_list_is_sorted_and_has_no_test_twice():
    lines = [line for line in LONG_TESTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert lines == sorted(set(lines))
