"""Archives of the original traces: bytes, manifest, and the planted clock that its offsets recover."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest
from tests.drawing import timeline_from_text
from tests.exporters.originals.planted import AHEAD_NS, RANKS, RECORDED, causal_bounds, plant

import stagescope
from stagescope.exporters.originals.archive import MANIFEST, _names
from stagescope.exporters.originals.files import Original
from stagescope.vocabulary.errors import OutputError, UsageError


def archive(folder, out, **reading):
    timeline = stagescope.read(folder, **reading)
    written = stagescope.export(timeline, out, format="perfetto-archive")
    with zipfile.ZipFile(out) as packed:
        manifest = json.loads(packed.read(MANIFEST))["perfetto_manifest"]
        members = {name: packed.read(name) for name in packed.namelist() if name != MANIFEST}
    return timeline, manifest, members, written


def offsets(manifest):
    """Return the offset of every rank as Perfetto applies it: an event at T is at T + offset of the reference."""
    return [entry.get("clocks", {}).get("offset_ns", 0) for entry in manifest["files"]]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = plant(tmp_path_factory.mktemp("planted"))
    return folder, archive(folder, tmp_path_factory.mktemp("out") / "run.zip")


def test_members_have_the_bytes_of_the_originals_and_are_never_compressed_files_themselves(tmp_path):
    # forwarding_trace_parser.cc of Perfetto 58: "overrides are not supported for trace files which are themselves
    # archives", which gzip and zstd are there (decompressing_trace_reader.cc).
    _, manifest, members, written = archive(RECORDED, tmp_path / "run.zip")
    assert list(members) == [f"rank-{rank:05}/rank{rank}.json" for rank in RANKS]
    originals = [gzip.decompress((RECORDED / f"rank{rank}.json.gz").read_bytes()) for rank in RANKS]
    assert list(members.values()) == originals
    assert [entry["path"] for entry in manifest["files"]] == list(members)
    assert offsets(manifest) == [0, 0, 0, 0]
    assert (written.slice_count, written.flow_count) == (8371, 504)


def test_a_planted_offset_is_recovered_within_the_stated_error(planted):
    folder, (timeline, manifest, _, _) = planted
    stated_ns = manifest["attributes"]["stagescope.rank_2.estimated_error_ns"]
    assert 0 < stated_ns < AHEAD_NS
    # Time 0 of the shifted files is 5 ms late, and would be placed there without alignment.
    raw_ns = offsets(archive(folder, folder.parent / f"{folder.name}.zip", align=False)[1])
    assert raw_ns == [0, 0, AHEAD_NS, AHEAD_NS]
    found = offsets(manifest)
    assert found[:2] == [0, 0]
    assert found[2] == found[3]
    assert abs(found[2]) <= stated_ns
    assert timeline.alignment.machines[1].offset_ns == pytest.approx(found[2] - AHEAD_NS, abs=1000)


def test_sends_and_receives_are_in_order_where_the_manifest_places_them(tmp_path):
    # The messages of this run alone bound an offset to some ten milliseconds, so more than that is planted.
    ahead_ns = 20 * AHEAD_NS
    _, manifest, members, _ = archive(plant(tmp_path, ahead_ns), tmp_path / "run.zip")
    traces = [json.loads(content) for content in members.values()]
    most_ns, least_ns = causal_bounds(traces, offsets(manifest))
    assert least_ns <= 0 <= most_ns
    most_ns, least_ns = causal_bounds(traces, [0, 0, ahead_ns, ahead_ns])
    assert not least_ns <= 0 <= most_ns


def test_the_manifest_has_the_fields_of_the_format(planted):
    _, (_, manifest, _, _) = planted
    assert manifest["version"] == 1
    reference = manifest["files"][0]["path"]
    for entry in manifest["files"][1:]:
        assert set(entry) == {"path", "machine", "clocks"}
        assert set(entry["clocks"]) == {"sync_to", "offset_ns"}
        assert entry["clocks"]["sync_to"] == {"file": reference}
        assert type(entry["clocks"]["offset_ns"]) is int
    names = [entry["machine"]["name"] for entry in manifest["files"]]
    assert names == ["rank 0 on vm", "rank 1 on vm", "rank 2 on other", "rank 3 on other"]
    assert all(key and type(value) in {int, str} for key, value in manifest["attributes"].items())


def test_members_of_one_name_and_hidden_ones_get_paths_of_their_own():
    files = [(0, "a/t.json.gz"), (0, "b/t.json"), (1, "a/.t.json.zst"), (1, "a/.gz")]
    names = _names([Original(rank, None, Path(path), None, 0, 0) for rank, path in files])
    assert names == ["rank-00000/t.json", "rank-00000/2-t.json", "rank-00001/t.json", "rank-00001/gz"]


def test_the_file_whose_time_0_is_first_is_the_first_by_name(tmp_path):
    # archive_entry.cc reads members by name, and the clock of the first one is that of the merged trace, before whose
    # time 0 events are dropped.
    _, manifest, members, _ = archive(plant(tmp_path, -AHEAD_NS), tmp_path / "run.zip", align=False)
    reference = min(members)
    assert reference == "0-rank-00002/rank2.json"
    entries = {entry["path"]: entry for entry in manifest["files"]}
    assert set(entries) == set(members)
    assert "clocks" not in entries[reference]
    assert {entry["clocks"]["sync_to"]["file"] for entry in entries.values() if "clocks" in entry} == {
        reference
    }
    assert offsets(manifest) == [AHEAD_NS, AHEAD_NS, 0, 0]


def test_the_drift_that_a_fixed_offset_leaves_is_stated(tmp_path):
    plant(tmp_path, drift_ppm=2000.0)
    _, manifest, _, written = archive(tmp_path, tmp_path / "run.zip")
    residual_ns = manifest["attributes"]["stagescope.rank_2.drift_residual_ns"]
    assert residual_ns > 0
    (note,) = written.diagnostics
    assert (note.code, f"at most {residual_ns} ns" in note.message) == ("clock.drift_remains", True)


def test_equal_inputs_give_equal_archives(tmp_path):
    archive(RECORDED, tmp_path / "one.zip")
    archive(RECORDED, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


@pytest.mark.parametrize("name", ["perfetto-archive", "merged-chrome", "merged-pftrace"])
def test_a_run_without_original_traces_is_refused(tmp_path, name):
    with pytest.raises(OutputError, match="no original trace of rank 0"):
        stagescope.export(timeline_from_text("F0 B0"), tmp_path / "run", format=name)
    assert not (tmp_path / "run").exists()


def test_a_removed_original_is_named(tmp_path):
    plant(tmp_path)
    timeline = stagescope.read(tmp_path)
    (tmp_path / "rank3.json").unlink()
    with pytest.raises(OutputError, match=r"no original trace of rank 3: it was read from .*rank3\.json"):
        stagescope.export(timeline, tmp_path / "run.zip", format="perfetto-archive")


def test_options_of_other_formats_are_refused(tmp_path):
    with pytest.raises(UsageError):
        stagescope.export(stagescope.read(RECORDED), tmp_path / "run.zip", format="perfetto-archive", step=0)


def test_progress_is_reported_for_every_file(tmp_path):
    seen = []
    stagescope.export(
        stagescope.read(RECORDED),
        tmp_path / "run.zip",
        format="perfetto-archive",
        on_progress=lambda *each: seen.append(each),
    )
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
