"""Public traces with the identity in arguments, compared with a computation from the raw events without the package."""

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

import stagescope
from stagescope.cli import main
from stagescope.vocabulary.errors import InputError, UsageError

DATA = Path(__file__).parents[2] / "data" / "mapped"
MEGASCAN = sorted(DATA.glob("megascan-*"))
BYTEDANCE = DATA / "bytedance-ST.json.gz"
NAMES = ["rank", "kind", "step", "chunk", "microbatch", "start_us", "end_us"]


def events_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def actions_of_pairs(events):
    """Return the actions of begin and end events, whose identity is in the arguments of the end."""
    begun, found = {}, []
    for event in events:
        key = event["pid"], event["name"]
        if event["ph"] == "B":
            begun[key] = event["ts"]
        elif event["ph"] == "E":
            of = event["args"]
            identity = (of["iteration"], of["model_chunk"], of["microbatch"])
            found.append((event["pid"], event["name"], *identity, begun.pop(key), event["ts"]))
    return sorted(found)


def actions_read(timeline):
    actions = timeline.spans.filter(pl.col("kind").is_in(["forward", "backward"])).with_columns(
        kind=pl.col("kind").cast(pl.String),
        start_us=pl.col("start_ns") // 1000,
        end_us=pl.col("end_ns") // 1000,
    )
    return sorted(actions.select(NAMES).rows())


@pytest.mark.parametrize("path", MEGASCAN, ids=lambda path: path.name)
def test_megascan_is_recognized_and_every_action_is_where_the_trace_has_it(path):
    timeline = stagescope.read(path)
    expected = actions_of_pairs(events_of(path))
    assert len(expected) == 256
    assert actions_read(timeline) == expected
    assert timeline.ranks["pp"].to_list() == [0, 1, 2, 3]
    stages = timeline.spans.select((pl.col("stage") == pl.col("chunk") * 4 + pl.col("rank")).all())
    assert stages.item()
    assert not timeline.is_partial


@pytest.mark.parametrize(
    ("name", "window_ms", "bubble"), [("pp", 676.673, 0.43774), ("dpp", 933.770, 0.48329)]
)
def test_megascan_has_the_window_and_bubble_of_the_raw_events(name, window_ms, bubble):
    path = DATA / f"megascan-{name}-iter10.json.gz"
    actions = actions_of_pairs(events_of(path))
    window = max(one[-1] for one in actions) - min(one[-2] for one in actions)
    busy = sum(one[-1] - one[-2] for one in actions)
    assert window / 1000 == pytest.approx(window_ms)
    assert 1 - busy / (4 * window) == pytest.approx(bubble, abs=1e-5)
    report = stagescope.analyze(stagescope.read(path))
    assert report.bubble.fraction == pytest.approx(1 - busy / (4 * window), abs=1e-12)


def test_a_bytedance_timeline_has_the_identity_and_transfers_of_the_published_table():
    timeline = stagescope.read(BYTEDANCE)
    published = pl.read_parquet(DATA.parent / "public_runs" / "bytedance-ST.parquet")
    steps = timeline.spans["step"].unique().implode()
    key = ["rank", "kind", "step", "stage", "microbatch"]
    kinds = ["forward", "backward", "send_forward", "recv_forward", "send_backward", "recv_backward"]
    expected = published.filter(pl.col("step").is_in(steps), pl.col("kind").cast(pl.String).is_in(kinds))
    read = timeline.spans.filter(pl.col("kind").cast(pl.String).is_in(kinds))
    columns = [pl.col(name).cast(pl.String) for name in (*key, "peer")]
    assert read.select(columns).sort(pl.all()).equals(expected.select(columns).sort(pl.all()))
    assert timeline.ranks.select("dp", "pp").rows() == [(dp, pp) for pp in range(4) for dp in range(2)]
    events = [event for event in events_of(BYTEDANCE) if event["ph"] == "X"]
    assert timeline.spans.height == len(events) == 848
    compute = sum(event["dur"] for event in events if event["name"].endswith("-compute"))
    actions = read.filter(pl.col("kind").is_in(["forward", "backward"]))
    assert (actions["end_ns"] - actions["start_ns"]).sum() / 1000 == pytest.approx(compute, rel=1e-9)


def test_an_ideal_bytedance_timeline_is_numbered_by_the_order_of_its_stage(tmp_path):
    events = events_of(BYTEDANCE)
    for event in events:
        if event["ph"] == "X":
            event["args"] |= {"mb_id": None, "model_chunk": None}
    path = tmp_path / "ideal-timeline.json.gz"
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    key = ["rank", "kind", "step", "stage", "microbatch", "peer", "start_ns", "end_ns"]
    ideal, stated = (stagescope.read(one).spans.select(key).sort(pl.all()) for one in (path, BYTEDANCE))
    assert ideal.equals(stated)


def test_the_explicit_expressions_of_the_options_give_the_same_actions():
    path = DATA / "megascan-pp-iter10.json.gz"
    options = {"microbatch": "args.microbatch", "step": "args.iteration", "stage": "args.model_chunk*4+pid"}
    assert actions_read(stagescope.read(path, map=options)) == actions_read(stagescope.read(path))


@pytest.fixture
def two_runs(tmp_path):
    """Write the two iterations in one file, as the project's merge_trace.py does."""
    path = tmp_path / "merged.json"
    dpp, pp = (events_of(DATA / f"megascan-{name}-iter10.json.gz") for name in ("dpp", "pp"))
    path.write_text(json.dumps([{**event, "tid": 1} for event in dpp] + pp))
    return path


def test_two_runs_in_one_trace_are_refused_with_the_option_that_chooses_one(two_runs, capsys):
    with pytest.raises(InputError, match=r"512 actions occur more than once .* --only tid=0 or --only tid=1"):
        stagescope.read(two_runs)
    assert main(["report", str(two_runs)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    for number, name in enumerate(("pp", "dpp")):
        alone = stagescope.read(DATA / f"megascan-{name}-iter10.json.gz")
        assert actions_read(stagescope.read(two_runs, only={"tid": number})) == actions_read(alone)


def test_actions_with_neither_step_nor_microbatch_are_refused_with_what_to_map():
    path = DATA / "megascan-pp-iter10.json.gz"
    with pytest.raises(InputError, match="neither step nor micro-batch") as error:
        stagescope.read(path, pattern="{kind}")
    assert "--map step=args.iteration --map microbatch=args.microbatch" in error.value.hint


def test_an_expression_without_a_value_is_refused_instead_of_counting_steps():
    with pytest.raises(InputError, match=r"step = args\.itertion has no value"):
        stagescope.read(MEGASCAN[0], map={"step": "args.itertion"})


def test_counted_steps_must_agree_with_the_iterations_that_events_state():
    fields = {"microbatch": "args.microbatch % 2", "chunk": "args.model_chunk"}
    with pytest.raises(
        InputError, match=r"steps were found, but args\.iteration has 1 different values"
    ) as error:
        stagescope.read(MEGASCAN[0], pattern="{kind}", map=fields)
    assert "--map step=args.iteration" in error.value.hint


def test_options_of_mappings_are_refused_for_other_inputs_and_when_malformed():
    table = DATA.parent / "public_runs" / "megascan-pp.parquet"
    with pytest.raises(UsageError, match="only with Chrome traces"):
        stagescope.read(table, map={"step": "pid"})
    with pytest.raises(UsageError, match="one of the fields"):
        stagescope.read(MEGASCAN[0], map={"steps": "pid"})
    with pytest.raises(UsageError, match="one of name, category"):
        stagescope.read(MEGASCAN[0], only={"color": "red"})
    with pytest.raises(UsageError, match="--mapping, --pattern"):
        stagescope.read(MEGASCAN[0], mapping="megascan", pattern="{kind}")
