"""The cases that the page runs too (web/tests/model/cases.test.ts)."""

import pytest

import viewer_cases

CASES = viewer_cases.read_cases()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return viewer_cases.run_of_cases(CASES, tmp_path_factory.mktemp("cases") / "run")


@pytest.mark.parametrize("case", CASES["queries"], ids=[case["query"] for case in CASES["queries"]])
def test_query_finds_the_spans_of_the_shared_case(run, case):
    assert {"query": case["query"], **viewer_cases.query_result(run, case["query"])} == case


@pytest.mark.parametrize("case", CASES["statistics"], ids=str)
def test_statistics_are_those_of_the_shared_case(run, case):
    found = viewer_cases.statistics_result(run, case["start"], case["end"], case["rows"])
    assert found == case["expected"]
