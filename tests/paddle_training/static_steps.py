"""Run under real Paddle: three steps of a list of jobs under its executor. Arguments: [profiled]"""

import sys

from paddle.base import core
from static_jobs import executor_of, job, program_of

STEPS, WIDTH = 3, 16
ORDER = [("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1), ("backward", 2)]


def events_in(node):
    named = node.name.rpartition("-")[0] in {"forward", "backward", "optimizer"}
    return named + sum(map(events_in, node.children_node))


programs = {
    "forward": program_of(2, WIDTH),
    "backward": program_of(3, WIDTH),
    "optimizer": program_of(1, WIDTH),
}
executor = executor_of([job(*one) for one in [*ORDER, ("optimizer", 0)]], programs)
profiler = None
if "profiled" in sys.argv:
    options = core.ProfilerOptions()
    options.trace_switch = 1
    profiler = core._Profiler.create(options, [])
    profiler.prepare()
    profiler.start()
for step in range(STEPS):
    print("step", step, executor.run([]))
if profiler:
    result = profiler.stop()
    print("events of the training's own:", sum(map(events_in, result.get_data().values())))
