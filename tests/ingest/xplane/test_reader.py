"""Profiles of JAX and XLA: planted runs and unsuitable files."""

import polars as pl
import pytest

import stagescope
from drawing import timeline_from_text
from stagescope.ingest.xplane.reader import recognize_profile
from stagescope.vocabulary.errors import InputError
from xplane_profiles import BASE_NS, EPOCH_NS, device, drawn_profile, profile

DRAWING = """
F0 F1 .  B0 .  B1
.  F0 B0 F1 B1 .
"""
COLUMNS = ["rank", "kind", "stage", "microbatch", "start_ns", "end_ns"]


@pytest.fixture
def drawn():
    return timeline_from_text(DRAWING, cell_ns=1000).spans


def write(folder, data, name="rank0.xplane.pb"):
    path = folder / name
    path.write_bytes(data)
    return path


def test_recovers_a_drawn_run_of_several_devices(tmp_path, drawn):
    found = stagescope.read(write(tmp_path, drawn_profile(drawn), "node.xplane.pb"), align=False)
    wanted = drawn.with_columns(pl.col("start_ns", "end_ns") + EPOCH_NS + BASE_NS).select(COLUMNS)
    assert found.spans.select(COLUMNS).equals(wanted)
    assert found.ranks["device"].to_list() == ["GPU:0", "GPU:1"]
    assert found.diagnostics.filter(code="ranks.assumed").height == 1


def test_one_profile_per_host_has_the_rank_in_its_name(tmp_path, drawn):
    for rank in (0, 1):
        write(tmp_path, drawn_profile(drawn, ranks=[rank]), f"rank{rank}.xplane.pb")
    found = stagescope.read(tmp_path, align=False)
    wanted = drawn.with_columns(pl.col("start_ns", "end_ns") + EPOCH_NS + BASE_NS).select(COLUMNS)
    assert found.spans.select(COLUMNS).equals(wanted)


def test_a_scope_that_comes_again_is_the_same_action_of_the_next_step(tmp_path, drawn):
    found = stagescope.read(write(tmp_path, drawn_profile(drawn, repeat=3)), align=False)
    assert found.spans.group_by("step").len().sort("step").rows() == [(0, 8), (1, 8), (2, 8)]


def test_kernels_without_a_scope_and_on_other_streams_do_not_extend_an_action(tmp_path):
    kernels = [
        ("gemm", "F0.0", 7, 0, 100),
        ("copy", "", 7, 100, 200),
        ("gemm", "F0.0", 7, 200, 300),
        ("small", "F0.0", 9, 50, 900),
        ("gemm", "B0.0", 7, 1000, 2000),
        ("ncclDevKernel_SendRecv", "B0.0", 9, 1500, 2500),
    ]
    found = stagescope.read(write(tmp_path, profile(device(0, kernels))), align=False)
    rows = found.spans.filter(pl.col("kind") != "other").select("kind", "start_ns", "end_ns").rows()
    base = EPOCH_NS + BASE_NS
    assert [(kind, start - base, end - base) for kind, start, end in rows] == [
        ("forward", 0, 300),
        ("backward", 1000, 2000),
    ]
    assert found.spans.filter(kind="other")["name"].to_list() == ["ncclSendRecv"]
    assert found.diagnostics.filter(code="kernels.other_stream")["count"].to_list() == [1]


def test_scopes_of_a_tpu_are_in_another_stat(tmp_path):
    plane = device(0, [("fusion", "F0.0", 1, 0, 10), ("fusion", "B0.0", 1, 20, 30)], stat="tf_op")
    assert stagescope.read(write(tmp_path, profile(plane)), align=False).spans.height == 2


def test_the_error_without_actions_has_examples_and_what_to_add(tmp_path):
    plane = device(0, [("gemm", "jvp(Transformer)/layer_3", 7, 0, 100)])
    path = write(tmp_path, profile(plane))
    with pytest.raises(InputError) as error:
        stagescope.read(path)
    assert str(error.value) == (
        f"no pipeline action in {path}: none of its 3 named scopes is named like one: 'step', 'Transformer', 'layer_3'"
    )
    assert "jax.named_scope" in error.value.hint


def test_the_error_for_a_damaged_profile_names_the_place(tmp_path):
    path = write(tmp_path, b"\x0a\xff\xff")
    with pytest.raises(InputError) as error:
        stagescope.read(path)
    assert str(error.value) == (
        f"{path}: not an XLA profile: the profile is damaged: the data end within a field at byte 0"
    )


def test_the_planes_before_damage_are_read(tmp_path, drawn):
    data = drawn_profile(drawn)
    found = stagescope.read(write(tmp_path, data[:-30]), align=False)
    assert found.spans.height == drawn.height
    assert found.diagnostics.filter(code="file.damaged").height == 1


def test_profiles_are_recognized_by_their_first_plane(tmp_path):
    assert recognize_profile(tmp_path / "a.pb", profile())
    assert not recognize_profile(tmp_path / "a.pb", b"\x0a\x05\x12\x03abc")


def test_planes_of_one_name_are_reported(tmp_path):
    plane = device(0, [("gemm", "F0.0", 7, 0, 100), ("gemm", "B0.0", 7, 100, 200)])
    found = stagescope.read(write(tmp_path, profile(plane, plane)), align=False)
    assert found.diagnostics.filter(code="file.damaged")["severity"].to_list() == ["error"]


def test_kernels_are_kept_on_request_also_those_of_no_action(tmp_path):
    kernels = [
        ("gemm_fusion", "F0.0", 7, 0, 100),
        ("MemcpyD2D", "", 7, 100, 200),
        ("gemm_fusion", "B0.0", 7, 1000, 2000),
        ("loop_add_fusion", "B0.0", 9, 1100, 1200),
        ("ncclDevKernel_AllGather_RING_LL", "B0.0", 9, 1500, 2500),
    ]
    path = write(tmp_path, profile(device(0, kernels)))
    assert stagescope.read(path).kernels.is_empty()
    report = stagescope.analyze(stagescope.read(path, kernels=True))
    found = report.timeline.kernels
    assert found.select("name", "category", "operation", "kind", "stream").rows() == [
        ("gemm_fusion", "gemm", None, "forward", 7),
        ("MemcpyD2D", "memcpy", None, None, 7),
        ("gemm_fusion", "gemm", None, "backward", 7),
        ("loop_add_fusion", "other", None, None, 9),
        ("ncclDevKernel_AllGather_RING_LL", "communication", "all_gather", "backward", 9),
    ]
    hidden = report.kernel_communication.filter(operation="all_gather")
    assert hidden.filter(scope="action").select("communication_ns", "hidden_ns").rows() == [(1000, 500)]
