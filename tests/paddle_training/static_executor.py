"""Run under real Paddle: one process of a pipeline, with its jobs under Paddle's executor and profiler.

    python static_executor.py OUT_DIRECTORY WORKER_NAME RANK RANKS MICROBATCHES STEPS

The jobs are in 1F1B order and compute a small product. Processes do not communicate: the executor writes the same
events with and without communication. WORKER_NAME may be empty, for Paddle's default name.
"""

import sys

from paddle import profiler
from static_jobs import executor_of, job, program_of

OUT, WORKER = sys.argv[1:3]
RANK, RANKS, MICROBATCHES, STEPS = map(int, sys.argv[3:])
WIDTH, SKIPPED_STEPS = 64, 2


def one_f_one_b():
    """Return the rank's jobs: warm-up forwards, then pairs, then the remaining backwards, then the optimizer."""
    warmup = min(RANKS - 1 - RANK, MICROBATCHES)
    forwards, backwards = list(range(MICROBATCHES)), list(range(MICROBATCHES))
    order = [("forward", forwards.pop(0)) for _ in range(warmup)]
    while forwards:
        order += [("forward", forwards.pop(0)), ("backward", backwards.pop(0))]
    order += [("backward", microbatch) for microbatch in backwards]
    return [job(*one) for one in [*order, ("optimizer", 0)]]


programs = {
    "forward": program_of(4, WIDTH),
    "backward": program_of(8, WIDTH),
    "optimizer": program_of(1, WIDTH),
}
executor = executor_of(one_f_one_b(), programs)
recorder = profiler.Profiler(
    targets=[profiler.ProfilerTarget.CPU],
    scheduler=(SKIPPED_STEPS, SKIPPED_STEPS + STEPS),
    on_trace_ready=profiler.export_chrome_tracing(OUT, WORKER or None),
)
recorder.start()
for _ in range(SKIPPED_STEPS + STEPS + 1):
    executor.run([], True, True)  # return_numpy, enable_job_schedule_profiler
    recorder.step()
recorder.stop()
