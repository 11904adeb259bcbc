"""Write drawn or simulated timelines as dumps of Primus."""

from __future__ import annotations

import json

import polars as pl

SERIES = {"forward": "fwd", "backward": "bwd", "backward_input": "bwd", "backward_weight": "wgrad"}


def write_dumps(folder, timeline, *, numbered=False, iterations=1, **config):
    """Write pp_rank_N.json and config.json; `numbered` adds micro-batches and chunks, as PrimusPipe does.

    ``"passes"`` adds them to forwards and backwards only, as the zero-bubble runtime does.
    """
    folder.mkdir(exist_ok=True)
    spans = timeline.spans.with_columns(pl.col("kind").cast(pl.String)).filter(
        pl.col("kind").is_in(list(SERIES))
    )
    for (rank,), own in spans.group_by("rank"):
        one = iteration(own.sort("start_ns"), numbered=numbered)
        content = {str(number + 1): one for number in range(iterations)}
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    size = spans["rank"].n_unique()
    sizes = {"world_size": size, "dp_size": 1, "tp_size": 1, "ep_size": 1, "pp_size": size}
    vp_size = int(spans["chunk"].max() or 0) + 1
    counts = {"vp_size": vp_size, "num_mbs": spans["microbatch"].n_unique(), "train_iters": iterations}
    (folder / "config.json").write_text(json.dumps({**sizes, **counts, **config}, indent=2), encoding="utf-8")
    return folder


def iteration(spans, *, numbered):
    """Return the entry of one iteration of one rank in a dump."""
    found = {"total": spans["end_ns"].max() / 1e6, "memory": 41.25}
    for series in ("fwd", "bwd", "wgrad"):
        own = spans.filter(pl.col("kind").replace_strict(SERIES) == series)
        for side in ("start", "end"):
            found[f"{series}_{side}"] = (own[f"{side}_ns"] / 1e6).to_list()
        is_numbered = numbered and (numbered != "passes" or series != "wgrad")
        found[f"{series}_minibatch"] = own["microbatch"].to_list() if is_numbered else []
        found[f"{series}_chunk"] = own["chunk"].to_list() if is_numbered else []
    return found
