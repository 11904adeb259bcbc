"""A pipeline in one process that starts and stops the recorder by hand. Arguments: OUT [custom]

GPipe over one stage, with an evaluation between its steps (torch 2.13 cannot evaluate a looped schedule); or, with
`custom`, a looped schedule over two stages whose backward passes are a custom function.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining import stage as stages_module
from torch.optim import optimizer as optimizers

from stagescope import record


class OwnStage(PipelineStage):
    """A stage with its own code around torch's forward."""

    def forward_one_chunk(self, *args, **kwargs):
        return super().forward_one_chunk(*args, **kwargs)


def state():
    base = stages_module._PipelineStageBase
    names = ("forward_one_chunk", "backward_one_chunk", "get_fwd_send_ops", "perform_reduce_grad")
    own = [
        vars(schedules)["record_function"],
        vars(schedules)["_batch_p2p"],
        vars(OwnStage)["forward_one_chunk"],
    ]
    hooks = optimizers._global_optimizer_pre_hooks
    return [
        *own,
        *(vars(base)[name] for name in names),
        schedules.PipelineScheduleMulti.step,
        schedules.PipelineScheduleSingle.step,
        len(hooks),
    ]


def custom_backward(action, context):
    """Run a full backward without the stage's wrapped method, like a graph-based runner."""
    schedule = context.schedule_ref
    stage = next(stage for stage in schedule._stages if stage.stage_index == action.stage_index)
    loss = schedule._maybe_get_loss(stage, action.microbatch_index)
    original = vars(stages_module._PipelineStageBase)["backward_one_chunk"].__stagescope_original__
    original(stage, action.microbatch_index, loss=loss, full_backward=True, last_backward=False)
    if stage.stage_index:
        before = next(one for one in schedule._stages if one.stage_index == stage.stage_index - 1)
        before.set_local_bwd_input(
            stage.get_local_bwd_output(action.microbatch_index), action.microbatch_index
        )


def main():
    out, custom = sys.argv[1], "custom" in sys.argv
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    before = state()
    record.start(out)
    device = torch.device("cpu")
    count = 2 if custom else 1
    stages = [OwnStage(nn.Linear(4, 4), index, count, device) for index in range(count)]
    if not custom:
        schedule = schedules.ScheduleGPipe(stages[0], 2, loss_fn=nn.MSELoss())
    else:
        schedule = schedules.ScheduleInterleaved1F1B(stages, 2, loss_fn=nn.MSELoss())
        schedule.register_custom_function(schedules._ComputationType.FULL_BACKWARD, custom_backward)
    optimizer = torch.optim.SGD([w for stage in stages for w in stage.submod.parameters()], lr=0.1)
    batch = torch.randn(4, 4)
    for step in range(2):
        schedule.step(batch, target=batch, losses=[])
        optimizer.step()
        if step == 0 and not custom:
            with torch.no_grad():
                schedule.eval(batch, target=batch, losses=[])
                schedules.ScheduleGPipe(stages[0], 2).step(batch)
    record.stop()
    same = all(one is other or one == other for one, other in zip(before, state(), strict=True))
    print(json.dumps({"same_after_stop": same}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
