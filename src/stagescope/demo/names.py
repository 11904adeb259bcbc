"""The schedules of torch.distributed.pipelining that the demo can train with; no torch is needed to name them."""

THEORY = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}
"""Torch's name of each schedule, and the name under which stagescope.schedules knows its order."""

SCHEDULES = tuple(THEORY)
