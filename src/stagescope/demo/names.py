"""The schedules of torch.distributed.pipelining that the demo supports. Importing this module does not import torch."""

THEORY = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}
"""torch's name of each schedule, and the name of its order in stagescope.schedules."""

SCHEDULES = tuple(THEORY)
