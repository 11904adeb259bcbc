"""The training of one rank in paddle_fleet.py, which starts it."""

from __future__ import annotations

import os

import paddle
import paddle_cpu
import ranks
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer

STEPS, ROWS, WIDTH = 3, 2, 8


class Block(nn.Layer):
    """A linear layer with tanh."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        return paddle.tanh(self.linear(_first(value)))


class Net(PipelineLayer):
    """Two blocks per rank."""

    def __init__(self, options):
        shape = {"num_virtual_pipeline_stages": options.chunks} if options.chunks > 1 else {}
        if options.dualpipev:
            shape["use_dualpipev"] = True
        super().__init__(
            layers=[LayerDesc(Block) for _ in range(options.ranks * 2)],
            loss_fn=mean_square,
            num_stages=options.ranks,
            seg_method="layer:Block",
            topology=fleet.get_hybrid_communicate_group().topology(),
            **shape,
        )


def mean_square(output, labels):
    """Return the loss of a micro-batch."""
    return ((_first(output) - labels) ** 2).mean()


def _first(value):
    """Return a tensor that some schedules pass in a tuple."""
    return value[0] if isinstance(value, (list, tuple)) else value


def stages_of(rank, options):
    """Return the stages of a rank: one, two in a V, or some in a loop around the ranks."""
    if options.dualpipev:
        return [rank, 2 * options.ranks - 1 - rank]
    return [rank + chunk * options.ranks for chunk in range(options.chunks)]


def start_fleet(options):
    """Start fleet with the strategy of a schedule."""
    strategy = fleet.DistributedStrategy()
    sizes = {"dp_degree": 1, "mp_degree": 1, "pp_degree": options.ranks}
    if options.dualpipev:
        sizes["pp_configs"] = {"use_dualpipev": True}
    strategy.hybrid_configs = sizes
    strategy.pipeline_configs = {"accumulate_steps": options.microbatches, "micro_batch_size": ROWS}
    fleet.init(is_collective=True, strategy=strategy)


def train(rank, options):
    """Train as one of the ranks."""
    sockets = paddle_cpu.replace_device(rank, options.ranks, os.environ["PADDLE_MASTER"])
    start_fleet(options)
    paddle.seed(1)
    if rank == 0:
        ranks.versions("paddle", paddle.__version__)
    backward = "mixed" if options.dualpipev else "full"
    ranks.plan(rank, stages_of(rank, options), options.microbatches, steps=STEPS, backward=backward)
    net = Net(options)
    optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(0.1, parameters=net.parameters()))
    model = fleet.distributed_model(net)
    inputs = paddle.linspace(-1, 1, ROWS * options.microbatches * WIDTH).reshape([-1, WIDTH])
    labels = paddle.zeros(inputs.shape)
    for step in range(STEPS):
        loss = model.train_batch([inputs, labels], optimizer)
        ranks.value(rank, step, float(loss.item()), (each.numpy() for each in net.parameters()))
    sockets.close()
