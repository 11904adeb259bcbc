"""The recorder inside a training run: which action of which micro-batch ran when, at a microsecond a span.

    import stagescope.record as record

    record.start("recordings/today")                      # or: stagescope run -- torchrun train.py
    with record.span("forward", microbatch=0, stage=1):   # torch.distributed.pipelining needs no marks
        ...
    record.stop()

Standard library only. Nothing here raises into the training or waits for the disk.
"""

from stagescope.record.actions import action
from stagescope.record.ranges import job_schedule_profiler_range
from stagescope.record.session import start, stop
from stagescope.record.spans import profile_range, span

__all__ = ["action", "job_schedule_profiler_range", "profile_range", "span", "start", "stop"]
