"""The forwards and backwards of Megatron's schedules: which stage, micro-batch and chunk each computes.

A forward is given its micro-batch, or is counted; a backward belongs to the forward that made its tensor. Both
functions are called for each micro-batch, between the operations of the training, where each Python function on the way
costs 1 us. So what usually happens is written out in one function before the call and one after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.format import NONE
from stagescope.record.frameworks.actions_in_progress import ActionsInProgress
from stagescope.record.frameworks.megatron_facts import ask
from stagescope.record.frameworks.megatron_overlap import Part
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, UNKNOWN, Place
from stagescope.record.hooks import Timed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagescope.record.calls import Call, Signature
    from stagescope.record.frameworks.host_activities import HostActivities
    from stagescope.record.frameworks.megatron_messages import Messages
    from stagescope.record.frameworks.runs import Runs

    Action = tuple[int, int, int, int]
    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Numbers = tuple[int, int, int]  # those of a Place

CONTAINERS = (list, tuple, dict)
NOWHERE = (None, None)


class Actions(ActionsInProgress):
    """The actions in progress, and the layout of the run in progress.

    `kinds` are the kinds of its actions. `outside` is called for each action outside of a schedule that is observed.
    """

    def __init__(
        self, runs: Runs, messages: Messages, activities: HostActivities, outside: Callable[[], object]
    ) -> None:
        super().__init__(runs.recorder)
        self.kinds: set[int] = set()
        self.chunks = 1
        self.pp_rank, self.pp_size = NONE, NONE
        self._models: Sequence[Any] = ()
        self._stages: dict[int, int] = {}
        self._runs = runs
        self._messages = messages
        self._activities = activities
        self._outside = outside
        self._waiting: list[Numbers] = []

    def begin_run(self, models: Sequence[Any], pp_rank: int, pp_size: int) -> None:
        """Begin a run with these chunks of the model: Megatron assigns stages to ranks round-robin."""
        self.kinds.clear()
        self._waiting.clear()
        self._models, self.chunks = models, len(models)
        self.pp_rank, self.pp_size = pp_rank, pp_size
        if NONE not in (pp_rank, pp_size):
            self._stages = {chunk: chunk * pp_size + pp_rank for chunk in range(len(models))}
            if self._messages.transfers is not None:
                self._messages.transfers.rank, self._messages.transfers.ranks = pp_rank, pp_size
        self._show_chunks()

    def end_run(self) -> None:
        """Forget the layout."""
        self._models = ()
        self._stages = {}
        self._show_chunks()
        self.pp_rank, self.pp_size = NONE, NONE

    def _show_chunks(self) -> None:
        """Let the wrappers in C know how many chunks have a known stage."""
        if self._messages.transfers is not None:
            self._messages.transfers.chunks = len(self._stages)

    def stage(self, chunk: int) -> int:
        """Return the global stage of a local chunk, `NONE` if it is unknown."""
        return self._stages.get(chunk, NONE)

    def forwards(self, signature: Signature) -> Timed:
        """Return what sees ``forward_step``. Before 0.7 it is not given the micro-batch, before 0.13 not the chunk."""
        recorder, runs, messages, activities = self.recorder, self._runs, self._messages, self._activities
        number_of, chunk_of = (
            signature.parameter("current_microbatch").place,
            signature.parameter("vp_stage").place,
        )
        taken, arriving, waiting = (
            signature.parameter("input_tensor"),
            messages.arriving.values,
            self._waiting,
        )
        transfers = messages.transfers

        def identify(args: Arguments, kwargs: Keywords) -> Action | None:
            if recorder.alone is not None and recorder.alone is not runs:
                return None
            if not messages.is_on:
                self._outside()
            self.kinds.add(FORWARD)
            chunk = kwargs.get("vp_stage")
            if chunk is None and chunk_of < len(args):
                chunk = args[chunk_of]
            if type(chunk) is not int:
                chunk = 0 if chunk is None and self.chunks == 1 else self._chunk(signature.call(args, kwargs))
            number = kwargs.get("current_microbatch")
            if number is None and number_of < len(args):
                number = args[number_of]
            if number is None:
                number = self._number(chunk)
            place = (self._stages.get(chunk, NONE), number, chunk)
            activities.forward = place
            waiting.append(place)
            if arriving or transfers:
                messages.used_by(taken.of(args, kwargs), place)
            return (FORWARD, *place)

        keep_one, keep_all = messages.places.keep, messages.made

        def forward_ends(action: Action, result: Any) -> None:
            activities.forward = None
            made = result[0] if isinstance(result, tuple) else result  # older versions do not return a tuple
            if type(made) is list and len(made) == 1:
                made = made[0]
            if isinstance(made, CONTAINERS):
                keep_all(made, action[1:])
            else:
                keep_one(made, action[1:])

        places = (taken.place, number_of, chunk_of)
        usual = self._usual("forward", FORWARD, forward_ends, places, (activities,))
        return Timed(self, identify, forward_ends, usual=usual)

    def backwards(self, signature: Signature) -> Timed:
        """Return what sees ``backward_step``, which is given neither micro-batch nor chunk."""
        recorder, runs, messages = self.recorder, self._runs, self._messages
        made_by, waiting = signature.parameter("output_tensor").place, self._waiting
        find, values = messages.places.find, getattr(messages.places, "values", None)
        taken, arriving = signature.parameter("output_tensor_grad"), messages.arriving.values
        transfers = messages.transfers

        def identify(args: Arguments, kwargs: Keywords) -> Action | None:
            if recorder.alone is not None and recorder.alone is not runs:
                return None
            self.kinds.add(BACKWARD)
            made = kwargs.get("output_tensor")
            if made is None and made_by < len(args):
                made = args[made_by]
            if type(made) is list and len(made) == 1:
                made = made[0]
            if values is None:  # a table in C, whose method costs no call of a Python function
                place = find(made)
            else:
                refer, place = values.get(id(made), NOWHERE)
                place = place if refer is not None and refer() is made else None
            if place is not None and waiting and waiting[0] == place:
                waiting.pop(0)
            else:
                place = self._place(made)
            if arriving or transfers:
                messages.used_by(taken.of(args, kwargs), place)
            return (BACKWARD, *place)

        usual = self._usual("backward", BACKWARD, self._keep, (taken.place, made_by))
        return Timed(self, identify, self._keep, usual=usual)

    def _usual(
        self,
        wrapper: str,
        kind: int,
        after: Callable[..., None],
        places: tuple[int, ...],
        more: tuple[Any, ...] = (),
    ) -> tuple[str, tuple[Any, ...], tuple[int, ...]] | None:
        """Return what the wrapper in C needs that takes usual calls; see native/megatron.c."""
        messages = self._messages
        if messages.transfers is None:
            return None
        refs = (
            self._runs, messages.transfers, messages.arriving.values, messages.places, self._waiting, self.kinds,
            after, *more,
        )  # fmt: skip
        return wrapper, refs, (kind, *places)

    def parts(self, call: Call) -> list[Part]:
        """Return the actions of a merged call: a forward, a backward, or both."""
        found = []
        if call.get("f_model") is not None:
            chunk, number = self._chunk(call), call.get("current_microbatch")
            place = Place(self.stage(chunk), self._number(chunk) if number is None else number, chunk)
            self._waiting.append(place)
            self._messages.used_by(call.get("input_tensor"), place)
            sends = place.stage != self.chunks * self.pp_size - 1
            found.append(Part(FORWARD, place, call.get("pre_forward") is not None, sends))
        if call.get("b_model") is not None:
            place = Place(*self._place(call.get("b_output_tensor")))
            self._messages.used_by(call.get("b_output_tensor_grad"), place)
            found.append(Part(BACKWARD, place, call.get("pre_backward") is not None, place.stage != 0))
        self.kinds.update(part.kind for part in found)
        return found

    def abandon(self, state: Action | None) -> None:
        """Leave an action that has failed, or of which more than its record has."""
        self._activities.forward = None
        super().abandon(state)

    def _keep(self, action: Action, made: Any) -> None:
        """Keep what an action has made, usually one tensor or a list of one."""
        if type(made) is list and len(made) == 1:
            made = made[0]
        if isinstance(made, CONTAINERS):
            self._messages.made(made, action[1:])
        elif made is not None:
            self._messages.places.keep(made, action[1:])

    def _place(self, made: Any) -> Numbers:
        """Return the place of a backward: that of its forward.

        If the tensor is unknown, the forwards of a single chunk are assumed to be used in order.
        """
        waiting = self._waiting
        place = self._messages.place_of(made)
        if place is None:
            return waiting.pop(0) if self.chunks == 1 and waiting else UNKNOWN
        if place in waiting:
            waiting.remove(place)
        return place

    def _number(self, chunk: int) -> int:
        """Return the number of a forward that is not given it."""
        if not self._messages.is_on or chunk == NONE:
            return NONE
        return self._runs.next_number(FORWARD, chunk)

    def _chunk(self, call: Call) -> int:
        """Return the local chunk of a forward."""
        given = call.get("vp_stage", call.get("f_model_chunk_id"))
        if given is None and self.chunks == 1:
            return 0
        if given is None:  # not an argument before 0.13
            model = call.get("model", call.get("f_model"))
            given = next((chunk for chunk, each in enumerate(self._models) if each is model), None)
        if given is None:
            given = ask("get_virtual_pipeline_model_parallel_rank")
        return given if isinstance(given, int) else NONE
