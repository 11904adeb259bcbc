"""What is observed of a torch training between its pipeline steps (torch 2.5.0 to 2.15.0).

A function that ``torch`` or a package exports again is observed under both names, because a training that starts the
recorder itself has imported torch before.
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

FRAMEWORK = "torch"
LOADER = "torch.utils.data.dataloader"
SAVER = "torch.distributed.checkpoint.state_dict_saver"
CLIPPING = "torch.nn.utils.clip_grad"
RATES = "torch.optim.lr_scheduler"
SERIALIZATION = "torch.serialization"
OPTIMIZER = "torch.optim.optimizer"


def _part(trigger: str, *points: Point) -> Part:
    return Part(
        FRAMEWORK, "torch", "2.5-2.15", trigger, "stagescope.record.frameworks.torch_iteration", points
    )


def _optional(owner: str, name: str, hook: str) -> Point:
    return Point(owner, name, hook, required=False)


PARTS = (
    _part(LOADER, _optional(f"{LOADER}:_BaseDataLoaderIter", "__next__", "load")),
    _part(OPTIMIZER),  # through torch's own hooks of optimizers
    _part(SERIALIZATION, _optional(SERIALIZATION, "save", "checkpoint"), _optional("torch", "save", "checkpoint")),
    _part(
        SAVER,
        _optional(SAVER, "save", "checkpoint"),
        _optional(SAVER, "async_save", "checkpoint"),
        _optional("torch.distributed.checkpoint", "save", "checkpoint"),
        _optional("torch.distributed.checkpoint", "async_save", "checkpoint"),
    ),
    _part(
        CLIPPING,
        *(
            _optional(module, name, "clip")
            for module in (CLIPPING, "torch.nn.utils")
            for name in ("clip_grad_norm_", "clip_grad_value_")
        ),
    ),
    _part(
        RATES,
        _optional(f"{RATES}:LRScheduler", "step", "adjust_rate"),
        _optional(f"{RATES}:ReduceLROnPlateau", "step", "adjust_rate"),
    ),
)  # fmt: skip
