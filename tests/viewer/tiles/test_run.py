import pytest

from drawing import timeline_from_text
from stagescope.viewer.tiles.cache import cache_folder, keep_whole
from stagescope.viewer.tiles.run import open_run
from stagescope.viewer.tiles.sources import save_timeline

TIMELINE = timeline_from_text("F0 F1 B0 B1\n. F0 B0 F1 B1")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Filler:
    def __init__(self):
        self.calls = 0

    def __call__(self, folder):
        self.calls += 1
        save_timeline(TIMELINE, folder)


def test_a_run_that_is_kept_is_not_made_again():
    fill = Filler()
    runs = [keep_whole("a-1", fill, open_run) for _ in range(2)]
    assert fill.calls == 1
    assert runs[0].meta == runs[1].meta
    assert runs[0].version == "a-1"
    assert {"heat"} <= set(runs[0].sections)


@pytest.mark.parametrize("name", ["meta.json", "spans", "shape.json", "spans.index"])
def test_damaged_run_is_rebuilt(name):
    fill = Filler()
    keep_whole("a-1", fill, open_run)
    (cache_folder() / "a-1" / name).write_bytes(b"{}")
    assert keep_whole("a-1", fill, open_run).meta["span_count"] == TIMELINE.spans.height
    assert fill.calls == 2


def test_levels_of_another_version_are_rebuilt():
    fill = Filler()
    keep_whole("a-1", fill, open_run)
    shape = cache_folder() / "a-1" / "shape.json"
    shape.write_text(shape.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(ValueError, match="levels of version 99, not 1"):
        open_run(shape.parent)
    keep_whole("a-1", fill, open_run)
    assert fill.calls == 2
