"""The schedules of torch.distributed.pipelining that the demo can train with; no torch is needed to name them."""

SCHEDULES = (
    "1F1B",
    "GPipe",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)
