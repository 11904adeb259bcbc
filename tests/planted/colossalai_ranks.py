"""Trains with ColossalAI's HybridParallelPlugin on CPUs. Usage: PLANT=... fork_ranks.py 4 colossalai_ranks.py"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
import torch._dynamo  # before packages are replaced
import torch.distributed as dist
from torch import nn

warnings.simplefilter("ignore")
sys.path.append(str(Path(__file__).resolve().parents[2] / "tools" / "compatibility" / "trainings"))
from empty_packages import replace_packages  # noqa: E402

replace_packages()
if not hasattr(dist, "is_hccl_available"):
    dist.is_hccl_available = lambda: False  # in a fork of torch for another device

import colossalai  # noqa: E402
from colossalai.booster import Booster  # noqa: E402
from colossalai.booster.plugin import HybridParallelPlugin  # noqa: E402
from colossalai.shardformer.policies.base_policy import Policy  # noqa: E402

from planted.plants import MICROBATCHES, STAGES, STEPS, Diary, Stage, loader  # noqa: E402


class Model(nn.Module):
    """All stages. A rank keeps its own, and takes and returns what the schedule passes on."""

    def __init__(self, replica):
        super().__init__()
        self.stages = nn.ModuleList(Stage(stage, replica) for stage in range(STAGES))
        self.own = None

    def forward(self, data=None, hidden_states=None, **_):
        value = self.stages[self.own](data if hidden_states is None else hidden_states)
        return value if self.own == STAGES - 1 else {"hidden_states": value}


class StagePolicy(Policy):
    """Leaves the layers as they are, and keeps one stage."""

    def config_sanity_check(self):
        pass

    def preprocess(self):
        return self.model

    def module_policy(self):
        return {}

    def postprocess(self):
        self.model.own = self.pipeline_stage_manager.stage
        return self.model

    def get_held_layers(self):
        return [self.model.stages[self.pipeline_stage_manager.stage]]

    def get_shared_params(self):
        return []


def main():
    torch.set_num_threads(1)
    colossalai.launch(
        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]), backend="gloo", verbose=False,
        host=os.environ["MASTER_ADDR"], port=int(os.environ["MASTER_PORT"]),
    )  # fmt: skip
    plugin = HybridParallelPlugin(
        tp_size=1, pp_size=STAGES, precision="fp32", zero_stage=0, num_microbatches=MICROBATCHES,
        custom_policy=StagePolicy(), max_norm=1.0,
    )  # fmt: skip
    index, replica = plugin.stage_manager.stage, dist.get_rank(plugin.dp_group)
    diary = Diary(dist.get_rank(), index, replica)
    torch.manual_seed(0)
    model = Model(replica)
    weights = [weight for name, weight in model.named_parameters() if "heavy" not in name]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    model, optimizer, criterion, *_ = Booster(plugin=plugin).boost(
        model, optimizer, lambda out, _: out.pow(2).mean()
    )
    batches = ({"data": batch} for batch in loader(index, replica))
    for _ in range(STEPS):
        diary.begin()
        done = plugin.execute_pipeline(batches, model, criterion, optimizer, return_loss=True)
        diary.losses += [done["loss"]] if done.get("loss") is not None else []
        diary.pause()
        optimizer.step()
        optimizer.zero_grad()
    diary.write()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
