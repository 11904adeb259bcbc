"""Run under real Paddle: fleet's dynamic-graph pipeline on CPU processes, with its own timeline turned on.

    python -m paddle.distributed.launch --nproc_per_node 2 --backend gloo fleet_pipeline.py MICROBATCHES STEPS

The records are in the working directory afterwards.
"""

import sys

import mends
import paddle
from paddle import distributed, nn
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer

MICROBATCHES, STEPS = map(int, sys.argv[1:])
SAMPLES, WIDTH = 4, 64


class Net(PipelineLayer):
    """One linear layer per stage."""

    def __init__(self, stages):
        super().__init__(
            layers=[LayerDesc(nn.Linear, WIDTH, WIDTH) for _ in range(stages)],
            loss_fn=nn.CrossEntropyLoss(),
            num_stages=stages,
            seg_method="layer:Linear",
            topology=fleet.get_hybrid_communicate_group().topology(),
        )


mends.mend()
stages = distributed.get_world_size()
strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {
    "dp_degree": 1, "mp_degree": 1, "pp_degree": stages, "pp_configs": {"profiling": True},
}  # fmt: skip
strategy.pipeline_configs = {"accumulate_steps": MICROBATCHES, "micro_batch_size": SAMPLES}
fleet.init(is_collective=True, strategy=strategy)
net = Net(stages)
optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(0.01, parameters=net.parameters()))
model = fleet.distributed_model(net)
for _ in range(STEPS):
    inputs = paddle.rand([SAMPLES * MICROBATCHES, WIDTH])
    labels = paddle.randint(0, WIDTH, [SAMPLES * MICROBATCHES, 1])
    model.train_batch([inputs, labels], optimizer)
