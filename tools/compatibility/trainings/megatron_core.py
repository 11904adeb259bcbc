"""Trains with a schedule of Megatron-core, over gloo on CPUs.

Usage: megatron_core.py [--chunks 2]

The model chunks are plain modules with an optimizer of torch. Megatron-core creates tensors on the current CUDA
device, which is replaced by the CPU in every place that a schedule reaches.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import warnings
from importlib.metadata import version

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

warnings.simplefilter("ignore")
# Before Megatron-core is imported, which reads some of these while it is.
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *_: None
torch.Tensor.cuda = lambda self, *_, **__: self
for name in ("HalfTensor", "FloatTensor", "BFloat16Tensor"):
    setattr(torch.cuda, name, getattr(torch, name))

from megatron.core import parallel_state  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

RANKS, MICROBATCHES, STEPS = 4, 8, 3
LENGTH, ROWS, WIDTH = 4, 2, 16


class CpuForCuda(TorchFunctionMode):
    """Creates tensors on the CPU where a CUDA device is requested."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return args[0] if function is torch.Tensor.cuda else function(*args, **kwargs)


class Chunk(nn.Module):
    """One model chunk: a linear layer, with the attributes and methods that schedules expect of a model."""

    def __init__(self, config, linear, stage, chunks):
        super().__init__()
        self.linear, self.config = linear, config
        self.model_type = ModelType.encoder_or_decoder
        self.vp_stage = stage // RANKS if chunks > 1 else None
        self.pre_process, self.post_process = stage == 0, stage == RANKS * chunks - 1
        self.share_embeddings_and_output_weights = False
        self.received = None

    def set_input_tensor(self, received):
        self.received = received[0] if isinstance(received, (list, tuple)) else received

    def forward(self, batch):
        return torch.tanh(self.linear(batch if self.received is None else self.received))


def known(function, **arguments):
    """Return the arguments that this version of a function has."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in names}


def mean_square(output):
    """Return the loss, and what a schedule collects of it."""
    loss = output.pow(2).mean()
    return loss, {"loss": float(loss.detach())}


def forward_step(iterator, model):
    """Run one model chunk on the next micro-batch."""
    return model(next(iterator)), mean_square


def configure(chunks):
    """Create the process groups; return the configuration of a pipeline."""
    sizes = {"pipeline_model_parallel_size": RANKS}
    if chunks > 1:
        sizes["virtual_pipeline_model_parallel_size"] = chunks
    create = parallel_state.initialize_model_parallel
    create(**sizes, **known(create, create_gloo_process_groups=False))
    return TransformerConfig(
        num_layers=RANKS * chunks, hidden_size=WIDTH, num_attention_heads=1, pipeline_dtype=torch.float32,
        batch_p2p_sync=False, use_cpu_initialization=True, overlap_p2p_comm=chunks > 1, batch_p2p_comm=chunks == 1,
        # Freed outputs of interleaved chunks would still be read by gloo, which has no stream to order that.
        deallocate_pipeline_outputs=chunks == 1, **sizes,
    )  # fmt: skip


def train(rank, chunks):
    """Train as one of the ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = configure(chunks)
    own = [rank + chunk * RANKS for chunk in range(chunks)]
    ranks.plan(rank, own, MICROBATCHES, steps=STEPS, backward="full")
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(RANKS * chunks)]
    models = [Chunk(config, layers[stage], stage, chunks) for stage in own]
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    batches = torch.randn(MICROBATCHES, LENGTH, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    schedule = get_forward_backward_func()
    for step in range(STEPS):
        optimizer.zero_grad()
        data = [itertools.cycle(batches) for _ in own]
        collected = schedule(
            forward_step_func=forward_step, data_iterator=data if chunks > 1 else data[0],
            model=models if chunks > 1 else models[0], num_microbatches=MICROBATCHES, seq_length=LENGTH,
            micro_batch_size=ROWS, forward_only=False,
        )  # fmt: skip
        optimizer.step()
        loss = sum(float(each["loss"]) for each in collected) / MICROBATCHES if collected else None
        ranks.value(rank, step, loss, (each.detach().numpy() for each in parameters))


def run(rank, chunks):
    """Train as one of the ranks, on the CPU."""
    dist.init_process_group("gloo")
    with CpuForCuda():
        train(rank, chunks)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=1, help="model chunks per rank")
    arguments = parser.parse_args()
    ranks.versions("megatron-core", version("megatron-core"), "torch", torch.__version__)
    ranks.start(RANKS, lambda rank: run(rank, arguments.chunks))
