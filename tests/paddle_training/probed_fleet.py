"""Run under real Paddle: a fleet pipeline on CPU processes that logs what it computes when.

    python -m paddle.distributed.launch --nproc_per_node N --backend gloo probed_fleet.py OUT MICROBATCHES STEPS

Column 0 of every activation carries the micro-batch's number through all stages, so the probes below know their
micro-batch, whatever the schedule is.
"""

import json
import sys
import time
from pathlib import Path

import mends
import paddle
from paddle import distributed, nn
from paddle.autograd import PyLayer
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer

OUT = Path(sys.argv[1])
MICROBATCHES, STEPS = map(int, sys.argv[2:])
SAMPLES, WIDTH, SECONDS = 2, 8, 0.003
LOG = []


def log_work(kind, stage, microbatch):
    start_ns = time.monotonic_ns()
    time.sleep(SECONDS)
    LOG.append((kind, stage, microbatch, start_ns, time.monotonic_ns()))


class Probe(PyLayer):
    """Passes its input through and logs both passes."""

    @staticmethod
    def forward(ctx, value, stage, microbatch):
        ctx.place = (stage, microbatch)
        log_work("forward", stage, microbatch)
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        log_work("backward", *ctx.place)
        return grad


class Block(nn.Layer):
    """One stage: a linear layer next to the number of the micro-batch."""

    def __init__(self, stage):
        super().__init__()
        self.linear = nn.Linear(WIDTH - 1, WIDTH - 1)
        self.stage = stage

    def forward(self, value):
        microbatch = round(float(value[0, 0]))
        out = Probe.apply(self.linear(value[:, 1:]), self.stage, microbatch)
        return paddle.concat([value[:, :1], paddle.tanh(out)], axis=1)


class Net(PipelineLayer):
    """As many blocks as there are stages."""

    def __init__(self, ranks):
        super().__init__(
            layers=[LayerDesc(Block, stage) for stage in range(ranks)],
            loss_fn=lambda output, labels: ((output[:, 1:] - labels) ** 2).mean(),
            num_stages=ranks,
            seg_method="layer:Block",
            topology=fleet.get_hybrid_communicate_group().topology(),
        )


def main():
    mends.mend()
    ranks = distributed.get_world_size()
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": ranks}
    strategy.pipeline_configs = {"accumulate_steps": MICROBATCHES, "micro_batch_size": SAMPLES}
    fleet.init(is_collective=True, strategy=strategy)
    paddle.seed(1)
    net = Net(ranks)
    optimizer = fleet.distributed_optimizer(paddle.optimizer.SGD(0.1, parameters=net.parameters()))
    model = fleet.distributed_model(net)
    inputs = paddle.linspace(-1, 1, SAMPLES * MICROBATCHES * WIDTH).reshape([-1, WIDTH])
    inputs[:, 0] = paddle.arange(MICROBATCHES).repeat_interleave(SAMPLES).astype("float32")
    labels = paddle.zeros([SAMPLES * MICROBATCHES, WIDTH - 1])
    losses = [model.train_batch([inputs, labels], optimizer).item() for _ in range(STEPS)]
    evaluated = model.eval_batch([inputs, labels], compute_loss=True).item()
    truth = {"log": LOG, "losses": losses, "evaluated": evaluated}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"rank{distributed.get_rank()}.json").write_text(json.dumps(truth), encoding="utf-8")


main()
