"""Declarations of profiles, alone and combined."""

import json
import sqlite3
from contextlib import closing

import pytest

from stagescope.ingest.ascend.metadata import Declared, Facts, Group, combine_facts, place_ranks, read_facts
from stagescope.ingest.ascend.pipeline_info import PipelineInfo
from stagescope.ingest.database import Database
from stagescope.ingest.layout import Layout
from stagescope.vocabulary.errors import InputError


def facts_of(path, rank, **recorded):
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE META_DATA (name TEXT, value TEXT)")
        rows = [
            (name, value if isinstance(value, str) else json.dumps(value)) for name, value in recorded.items()
        ]
        connection.executemany("INSERT INTO META_DATA VALUES (?, ?)", rows)
        connection.commit()
    with Database(path) as database:
        return read_facts(database, rank)


def test_the_guides_metadata_are_read(tmp_path):
    facts = facts_of(
        tmp_path / "x.db",
        3,
        pp_info={"pp_type": "DualPipeV", "microbatch_num": 10},
        distributed_args={
            "tensor_model_parallel_size": 2,
            "pipeline_model_parallel_size": 4,
            "world_size": 16,
        },
        parallel_group_info={"group_name_7": {"group_name": "pp", "group_rank": 1, "global_ranks": [1, 3]}},
    )
    assert facts.pipeline == PipelineInfo("dualpipev", 10)
    assert facts.sizes == {"tp": 2, "pp": 4}
    assert facts.world_size == 16
    assert facts.groups == {"group_name_7": Group("pp", (1, 3))}


def test_json_inside_a_json_text_is_read_too(tmp_path):
    facts = facts_of(
        tmp_path / "x.db", 0, pp_info=json.dumps(json.dumps({"pp_type": None, "microbatch_num": "8"}))
    )
    assert facts.pipeline == PipelineInfo(None, 8)


@pytest.mark.parametrize("value", ["", "{", "[1]", "null", '"text"', "7"])
def test_metadata_other_than_objects_is_ignored(tmp_path, value):
    facts = facts_of(tmp_path / "x.db", 0, pp_info=value, distributed_args=value, parallel_group_info=value)
    assert facts.pipeline in (None, PipelineInfo())
    assert (facts.sizes, facts.world_size, facts.groups) == ({}, None, {})


def test_short_names_of_sizes_are_recognized(tmp_path):
    recorded = {"tp": 2, "pp_size": "4", "cp": 1, "data_parallel_size": 0, "use_tp_pp_dp_mapping": True}
    facts = facts_of(tmp_path / "x.db", 0, distributed_args=recorded)
    assert facts.sizes == {"tp": 2, "pp": 4, "cp": 1}
    assert facts.order == "tp-cp-ep-pp-dp"


def test_reads_the_host_from_the_folder_if_the_tables_lack_it(tmp_path):
    path = tmp_path / "node_a_4711_20251120101112123_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "x.db"
    facts = facts_of(path, 0)
    assert (facts.host, facts.machine, facts.clock) == ("node_a", "node_a", "node_a/wall")
    bare = facts_of(tmp_path / "x.db", 0)
    assert (bare.host, bare.machine, bare.clock) == (None, None, None)


def facts(rank, **known):
    return Facts(rank, f"rank{rank}.db", **known)


def test_declarations_are_taken_from_any_rank():
    every = [facts(0), facts(1, pipeline=PipelineInfo("dualpipev", 8), sizes={"pp": 2, "dp": 1})]
    declared, notes = combine_facts(every)
    assert declared == Declared(PipelineInfo("dualpipev", 8), Layout(pp=2, dp=1), 2)
    assert notes == []


def test_reports_ranks_that_contradict_the_majority():
    every = [facts(rank, pipeline=PipelineInfo("1f1b", 4 if rank == 2 else 8)) for rank in range(4)]
    declared, (note,) = combine_facts(every)
    assert declared.pipeline.microbatches == 8
    assert (note.severity, note.message) == (
        "warning",
        "the pp_info declared by rank 2 differs from that of most ranks and is ignored",
    )


def test_a_data_parallel_size_that_counts_context_parallel_ranks_is_divided():
    declared, notes = combine_facts([facts(0, sizes={"pp": 4, "cp": 2, "dp": 4}, world_size=16)])
    assert (declared.layout.dp, declared.world_size, notes) == (2, 16, [])


def test_impossible_sizes_are_ignored():
    declared, (note,) = combine_facts([facts(0, sizes={"pp": 3, "dp": 2}, world_size=8), facts(7)])
    assert declared.layout.pp is None
    assert note.message == "the declared sizes dp 2 x pp 3 do not make 8 ranks; they are ignored"


def places(every, given=None):
    declared, _ = combine_facts(every)
    found, notes = place_ranks(every, declared, given or Layout())
    return dict(found.select("rank", "pp").iter_rows()), notes


def test_context_parallel_ranks_share_a_stage():
    every = [facts(rank, sizes={"pp": 4, "cp": 2, "dp": 2}) for rank in range(16)]
    assert places(every) == ({rank: rank // 4 for rank in range(16)}, [])


def test_missing_ranks_have_coordinates():
    assert places([facts(1, sizes={"pp": 4, "dp": 1})]) == ({0: 0, 1: 1, 2: 2, 3: 3}, [])


def test_recorded_groups_determine_the_order_of_the_ranks():
    groups = [{"g": Group("pp", (2 * (rank // 2), 2 * (rank // 2) + 1))} for rank in range(4)]
    every = [facts(rank, sizes={"pp": 2, "dp": 2}, groups=groups[rank]) for rank in range(4)]
    assert places(every) == ({0: 0, 1: 1, 2: 0, 3: 1}, [])


def test_recorded_groups_alone_are_enough():
    every = [facts(rank, groups={"g": Group("pp", (rank % 2, rank % 2 + 2))}) for rank in range(4)]
    assert places(every)[0] == {0: 0, 1: 0, 2: 1, 3: 1}


def test_groups_in_no_known_order_take_precedence_over_sizes():
    every = [facts(rank, sizes={"pp": 2, "dp": 1}, groups={"g": Group("pp", (1, 0))}) for rank in range(2)]
    found, (note,) = places(every)
    assert found == {0: 1, 1: 0}
    assert note.code == "layout.unknown_order"


def test_a_layout_in_the_options_must_fit():
    with pytest.raises(InputError):
        places([facts(rank) for rank in range(4)], Layout(pp=3))
    assert places([facts(rank) for rank in range(4)], Layout(pp=2))[0] == {0: 0, 1: 0, 2: 1, 3: 1}


def test_no_declaration_yields_no_layout():
    assert places([facts(0), facts(1)]) == ({0: None, 1: None}, [])
