"""Records when each action of each micro-batch ran in a training process, at about 1 us per span.

    import stagescope.record as record

    record.start("recordings/today")                      # or: stagescope run -- torchrun train.py
    with record.forward(microbatch=0, stage=1):           # not needed with torch.distributed.pipelining
        ...
    record.stop()

Uses the standard library only. Nothing in this package raises into the training or waits for the disk.
"""

from stagescope.record.actions import action
from stagescope.record.data_sizes import samples, tokens
from stagescope.record.marked_actions import backward, backward_input, backward_weight, forward, step
from stagescope.record.ranges import job_schedule_profiler_range
from stagescope.record.session import start, stop
from stagescope.record.spans import profile_range, span
from stagescope.record.startup import start_where_prepared

__all__ = [
    "action",
    "backward",
    "backward_input",
    "backward_weight",
    "forward",
    "job_schedule_profiler_range",
    "profile_range",
    "samples",
    "span",
    "start",
    "step",
    "stop",
    "tokens",
]

start_where_prepared()
