"""The real viewer against a real server, beside the same viewer in a page of its own: both answer the same."""

import os

import polars as pl
import pytest

from running_server import resting, run_of, serving
from stagescope.api.query_service import QueryService
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.page import write_html
from stagescope.viewer.server.app import ASSETS
from stagescope.viewer.server.launch import lead_file
from synthetic import Shape, pipeline_timeline

pytestmark = pytest.mark.slow

TIMELINE = pipeline_timeline(Shape(ranks=4, microbatches=12, steps=3))
ASK = """async () => {
  const source = window.stagescopeViewer.source;
  const answers = {};
  for (const query of ["F0", "kind:B dur>1ms", "stage:2 mb:3", "wait>100us", "peer:1 step:1-2", "rank:0,3 lane:comm"]) {
    const found = await source.search(query);
    answers[query] = [found.count, found.listed, ...Array.from({length: found.listed}, (_, i) => found.at(i))];
  }
  for (const [start, end, rows] of [[0, 5e6, [0]], [1e6, 4e7, [0, 1, 2, 3]], [0, 1e9, [3, 1]], [2e7, 2e7 + 1, [2]]])
    answers[`select ${start} ${end} ${rows}`] = await source.select(start, end, [...rows].sort());
  for (const id of [0, 7, 100, 300]) {
    answers[`details ${id}`] = await source.details(id);
    for (const whole of [false, true]) {
      const found = await source.links(id, whole);
      found.spans.sort((one, other) => one.id - other.id);
      found.links.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
      answers[`links ${id} ${whole}`] = found;
    }
  }
  return answers;
}"""


@pytest.fixture(scope="module")
def extras():
    return gather_extras(TIMELINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory, extras):
    run = run_of(TIMELINE, tmp_path_factory.mktemp("browser") / "run", extras)
    with serving(resting(run), ASSETS, query=QueryService(lambda: TIMELINE).answer) as visitor:
        yield visitor


@pytest.fixture(scope="module")
def page(browser, server):
    """Return the viewer as it comes when the command opens the browser, and whatever it complained about."""
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.complaints = []
    page.on("console", lambda line: page.complaints.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(lead_file(server.link).as_uri())
    page.wait_for_function("() => window.stagescopeViewer && document.querySelector('canvas')")
    return page


def test_the_link_leads_to_a_viewer_whose_address_has_no_token(page, server):
    assert page.url.startswith(f"http://127.0.0.1:{server.port}/run/run/")
    assert "token" not in page.url
    assert "token" not in page.evaluate("performance.getEntriesByType('navigation')[0].name")
    assert page.evaluate("document.cookie") == ""


def test_server_and_file_give_the_same_results(page, browser, extras, tmp_path):
    write_html(TIMELINE, tmp_path / "run.html", extras)
    alone = browser.new_page()
    alone.goto((tmp_path / "run.html").as_uri())
    alone.wait_for_function("() => window.stagescopeViewer")
    theirs, ours = (each.evaluate(ASK) for each in (alone, page))
    alone.close()
    assert set(theirs) == set(ours)
    for question, answer in theirs.items():
        assert without_places(ours[question]) == without_places(answer), question
    assert ours["F0"][0] > 0
    assert len(ours["links 7 true"]["links"]) > 1


def without_places(answer):
    """Return an answer without where in its lane a span is drawn, which only tiles need."""
    if isinstance(answer, dict):
        kept = {key: value for key, value in answer.items() if key not in {"sublane", "sublanes"}}
        return {key: without_places(value) for key, value in kept.items()}
    return [without_places(one) for one in answer] if isinstance(answer, list) else answer


STEPS = """async () => {
    const v = window.stagescopeViewer;
    const form = document.querySelector('.step-choice');
    form.closest('details').open = true;
    form.querySelector('button').click();
    for (let i = 0; i < 100 && !v.comparison.value; i++) await new Promise((done) => setTimeout(done, 50));
    const { matched, unmatched, own_ns, other_ns, steps } = v.comparison.value;
    const changes = Array.from({ length: v.meta.span_count }, (_, id) => v.comparison.value.delta(id) ?? null);
    v.comparison.value = null;
    return { matched, unmatched, own_ns, other_ns, steps, changes };
}"""


def test_two_steps_are_compared_on_the_server_as_in_a_file(page, browser, extras, tmp_path):
    write_html(TIMELINE, tmp_path / "run.html", extras)
    alone = browser.new_page()
    alone.goto((tmp_path / "run.html").as_uri())
    for each in (alone, page):
        each.wait_for_function("() => window.stagescopeViewer && document.querySelector('.step-choice')")
    theirs, ours = (each.evaluate(STEPS) for each in (alone, page))
    alone.close()
    assert theirs == ours
    assert (ours["steps"], ours["matched"], ours["unmatched"]) == ([1, 0], 96, 0)


def test_both_draw_the_same_picture(page, browser, extras, tmp_path):
    write_html(TIMELINE, tmp_path / "run.html", extras)
    alone = browser.new_page(viewport={"width": 1440, "height": 900})
    alone.goto((tmp_path / "run.html").as_uri())
    pictures = []
    for each in (alone, page):
        each.wait_for_function(
            "() => window.stagescopeViewer && document.querySelector('.canvas-box canvas')"
        )
        each.evaluate("() => window.stagescopeViewer.camera.fitAll()")
        each.wait_for_load_state("networkidle")
        each.evaluate(
            "() => { const v = window.stagescopeViewer; v.camera.view.value = {start: 0, end: 3e7}; }"
        )
        each.wait_for_timeout(1000)
        pictures.append(each.locator(".canvas-box canvas").first.evaluate("(canvas) => canvas.toDataURL()"))
    alone.close()
    assert len(pictures[0]) > 5000
    assert pictures[0] == pictures[1]


def test_nothing_is_asked_of_anybody_else_and_nothing_breaks_the_policy(page, server):
    names = page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert names
    assert all(name.startswith(f"http://127.0.0.1:{server.port}/") for name in names)
    assert page.complaints == []


def test_a_page_of_somebody_else_gets_nothing_of_the_run_by_way_of_the_browser(page, server, tmp_path):
    evil = tmp_path / "evil.html"
    evil.write_text("<title>evil</title>")
    other = page.context.new_page()
    other.goto(evil.as_uri())
    address = f"http://127.0.0.1:{server.port}"
    read = """async (address) => {
      const got = [];
      for (const mode of ["cors", "no-cors"]) {
        try { const answer = await fetch(address + "/run/run/api/meta", {mode, credentials: "include"});
              got.push(await answer.text()); } catch (error) { got.push("refused"); }
      }
      const loads = (tag, source) => new Promise((done) => {
        const element = document.createElement(tag);
        element.onload = () => done("loaded"); element.onerror = () => done("refused");
        element.src = address + source; document.body.append(element);
      });
      got.push(await loads("script", "/viewer.js"), await loads("img", "/run/run/api/meta"));
      const frame = document.createElement("iframe");
      frame.src = address + "/run/run/"; document.body.append(frame);
      await new Promise((done) => { frame.onload = done; setTimeout(done, 3000); });
      try { got.push(frame.contentDocument.body.innerText); } catch { got.push("refused"); }
      return got;
    }"""
    got = other.evaluate(read, address)
    other.close()
    assert set(got) <= {"refused", ""}, got


def test_sql_fills_the_sortable_table_and_an_error_is_one_sentence(page):
    page.keyboard.press("Escape")
    page.evaluate("() => window.stagescopeViewer.toggle('table')")
    page.get_by_role("button", name="SQL").click()
    query = page.get_by_role("textbox", name="SQL query")
    query.fill("select rank, count(*) as n, max(end_ns) as last_ns from spans group by rank order by rank")
    page.get_by_role("button", name="Run", exact=True).click()
    rows = page.locator(".visible-table tbody tr")
    rows.first.wait_for(timeout=60_000)
    found = [row.split("\t") for row in rows.all_inner_texts()]
    expected = TIMELINE.spans.group_by("rank").agg(pl.len(), pl.col("end_ns").max()).sort("rank")
    assert found == [[str(value) for value in row] for row in expected.rows()]
    head = page.get_by_role("button", name="last_ns")
    head.click()
    head.click()
    sorted_rows = [row.split("\t") for row in rows.all_inner_texts()]
    assert sorted_rows == sorted(found, key=lambda row: int(row[2]), reverse=True)
    query.fill("select * from <b>nothing</b>")
    page.get_by_role("button", name="Run", exact=True).click()
    problem = page.locator(".sql [role=alert]")
    problem.wait_for(timeout=60_000)
    assert problem.inner_text().startswith("the query failed: ")
    assert page.locator(".sql b").count() == 0
    if folder := os.environ.get("KEEP_PICTURES"):
        page.screenshot(path=f"{folder}/sql.png")
    page.evaluate("() => window.stagescopeViewer.toggle('table')")
