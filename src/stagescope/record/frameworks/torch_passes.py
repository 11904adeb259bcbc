"""The actions of torch.distributed.pipelining: what the methods of a stage compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.actions_in_progress import ActionsInProgress
from stagescope.record.frameworks.runs import ACTIONS, BACKWARD, BACKWARD_INPUT, LOSS, end_action
from stagescope.record.hooks import StageMethod, Timed

if TYPE_CHECKING:
    from stagescope.record.calls import Signature
    from stagescope.record.frameworks.torch_messages import Messages
    from stagescope.record.recorder import Recorder

    Action = tuple[int, int, int, int]
    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]

FIRST = 1
"""Place of the micro-batch of a stage's method: a subclass of the training may take ``*args`` or use another name."""


KINDS_OF_BACKWARD = {True: BACKWARD, False: BACKWARD_INPUT}
"""The kind of a backward, by the argument ``full_backward``, which is True by default."""


class Passes(ActionsInProgress):
    """The actions in progress, those `seen` in a range of this run, and how a stage's methods are identified.

    `last_stages` are those stages of this rank that compute a loss. The chunks of the stages that compute a backward or
    a loss in this run are found without a call, None for the others; see `Timed`.
    """

    def __init__(self, recorder: Recorder, messages: Messages) -> None:
        super().__init__(recorder, messages.expected)
        self.seen: set[Action] = set()
        self._messages = messages
        self.pending = messages.pending
        self.chunk_of_stage: dict[int, int] = {}
        self.last_stages: set[int] = set()
        self._chunk_of_backward: dict[int, int | None] = {}
        self._chunk_of_loss: dict[int, int | None] = {}

    @never_raises()
    def expect(self, schedule: Any, stages: list[Any]) -> None:
        """Note which of these stages compute a backward and a loss in a run of their schedule."""
        has_loss = schedule._loss_fn is not None  # noqa: SLF001  # no public name
        has_backward = schedule._has_backward  # noqa: SLF001  # same; of a stage it may only be set later in the run
        self._chunk_of_backward.clear()
        self._chunk_of_loss.clear()
        for stage in stages:
            index = stage.stage_index
            chunk = self.chunk_of_stage.get(index)
            self._chunk_of_backward[index] = chunk if has_backward and stage.has_backward else None
            self._chunk_of_loss[index] = chunk if has_loss and stage.is_last else None

    def used(self, action: Action, token: Any) -> None:
        """Record the receives that an action uses without a wait."""
        self._messages.used(*action[:3], token)

    def is_recorded(self, kind: int, stage: int, microbatch: int) -> bool:
        """Return whether an action has been recorded in this run, in a range that is observed."""
        return (kind, stage, microbatch, self.chunk_of_stage.get(stage, NONE)) in self.seen

    def record(self, token: Any, kind: int, stage: int, microbatch: int) -> None:
        """Record the action from `token` until now that no method of a stage has performed."""
        action = (kind, stage, microbatch, self.chunk_of_stage.get(stage, NONE))
        end_action(self.recorder, token, kind, (stage, microbatch, action[3]), self.recorder.pair)
        self.recorder.has_actions |= kind in ACTIONS
        self.seen.add(action)

    def methods(self, kind: int, signature: Signature, name: str) -> Timed:
        """Return what sees a method of a stage that receives the micro-batch under `name`."""
        place, chunk_of = signature.places.get(name, FIRST), self.chunk_of_stage.get

        def identify(args: Arguments, kwargs: Keywords) -> Action | None:
            stage = args[0].stage_index
            return kind, stage, args[place] if len(args) > place else kwargs[name], chunk_of(stage, NONE)

        return Timed(self, identify, method=StageMethod(kind, 0, place, self.chunk_of_stage))

    def backwards(self, signature: Signature) -> Timed:
        """Return what sees ``backward_one_chunk``, which torch also calls in an evaluation, where it does nothing."""
        name = "bwd_chunk_id"
        place, chunk_of = signature.places.get(name, FIRST), self.chunk_of_stage.get
        is_full = signature.parameter("full_backward").place

        def identify(args: Arguments, kwargs: Keywords) -> Action | None:
            if not args[0].has_backward:
                return None
            stage = args[0].stage_index
            microbatch = args[place] if len(args) > place else kwargs[name]
            full = kwargs.get("full_backward", args[is_full] if len(args) > is_full else True)  # its default
            kind = BACKWARD if full else BACKWARD_INPUT
            return kind, stage, microbatch, chunk_of(stage, NONE)

        method = StageMethod(BACKWARD, 0, place, self._chunk_of_backward, KINDS_OF_BACKWARD)
        return Timed(self, identify, method=method)

    def losses(self, signature: Signature) -> Timed:
        """Return what sees ``_maybe_compute_loss`` of a schedule, which computes a loss on the last stage only."""
        stage_at, number = signature.parameter("stage").place, signature.parameter("mb_index").place
        chunk_of = self.chunk_of_stage.get

        def identify(args: Arguments, kwargs: Keywords) -> Action | None:
            stage = args[stage_at] if len(args) > stage_at else kwargs["stage"]
            if not stage.is_last or args[0]._loss_fn is None:  # noqa: SLF001  # no public name
                return None
            index = stage.stage_index
            microbatch = args[number] if len(args) > number else kwargs["mb_index"]
            return LOSS, index, microbatch, chunk_of(index, NONE)

        method = StageMethod(LOSS, stage_at, number, self._chunk_of_loss, is_certain=True)
        return Timed(self, identify, possible=self.last_stages, method=method)
