"""Replacements of Primus' zero-bubble runtime and of PrimusPipe, with their functions, arguments and queues.

Both execute a plan of stagescope's own schedules on one rank. The executed actions are in `done`, in the notation of
schedules.
"""

# ruff: noqa: ARG001, ARG002, ARG003, FBT002, PLR0917 - the signatures are Primus'

from __future__ import annotations

import enum
import queue
import types
from dataclasses import dataclass

from stagescope import schedules
from stagescope.record.points import primus as points


class Tensor:
    """An object with an identity."""


def parallel_state(rank, ranks):
    return types.SimpleNamespace(
        get_pipeline_model_parallel_rank=lambda: rank, get_pipeline_model_parallel_world_size=lambda: ranks
    )


def plan(name, rank, ranks, microbatches, **options):
    """Return the actions of one rank: kind (F, B, W, or BW for a whole backward), micro-batch, chunk and stage."""
    order = schedules.order(name, ranks=ranks, microbatches=microbatches, **options)[rank]
    kinds = {"I": "B", "B": "BW"}
    found = []
    for action in order:
        for kind, stage, microbatch, *_ in action.parts:
            found.append((kinds.get(kind, kind), microbatch, stage // ranks, stage))
    return found


def megatron(done, place, names):
    """Return Megatron's functions; `place` returns micro-batch and stage of what a call executes."""

    def forward_step(
        forward_step_func,
        data_iterator,
        model,
        num_microbatches,
        input_tensor,
        forward_data_store,
        config,
        cp_group_size=1,
        collect_non_loss_data=False,
        checkpoint_activations_microbatch=None,
        is_first_microbatch=False,
        current_microbatch=None,
        vp_stage=None,
        is_last_stage=True,
    ):
        done.append(names(*place("F", current_microbatch, vp_stage)))
        return [Tensor()], 0

    def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
        done.append(names(*place("B", output_tensor)))
        return [Tensor()]

    def combined_forward_backward_step(
        forward_step_func,
        data_iterator,
        f_model,
        num_microbatches,
        input_tensor,
        forward_data_store,
        b_model,
        b_input_tensor,
        b_output_tensor,
        b_output_tensor_grad,
        config,
        f_model_chunk_id=None,
        current_microbatch=None,
        encoder_decoder_xattn=False,
    ):
        parts = []
        if f_model is not None:
            parts.append(names(*place("F", current_microbatch, f_model_chunk_id)))
        if b_model is not None:
            parts.append(names(*place("B", b_output_tensor)))
        done.append("+".join(parts))
        return [Tensor()], 0, [Tensor()]

    return forward_step, backward_step, combined_forward_backward_step


class FuncType(enum.Enum):
    F = "F"
    B = "B"
    W = "W"
    R = "R"
    BW = "BW"


@dataclass
class ScheduledNode:
    type: FuncType
    stage: int
    microbatch: int
    chunk: int = 0
    seq_split_idx: int = 0
    layer_group_idx: int | None = None


def zero_bubble(name, rank, ranks, microbatches, **options):
    """Return the modules by name; `runtime.iteration()` makes an iteration that runs the plan."""
    runtime, utils = types.ModuleType(points.RUNTIME), types.ModuleType("zbpp_utils")
    runtime.done = done = []
    current = []

    def label(kind, microbatch, stage):
        letter = {"B": "I" if utils.WeightGradStore.should_split_bw else "B"}.get(kind, kind)
        return f"{letter}{stage}.{microbatch}"

    def place(kind, *_):
        node = current[-1]
        return kind, node.microbatch, node.layer_group_idx

    runtime.forward_step, runtime.backward_step, _ = megatron(done, place, label)

    class WeightGradStore:
        should_split_bw = False
        cache = []  # noqa: RUF012  # as in Primus
        weight_grad_queue = None

        @classmethod
        def flush(cls, chunk=0, seq_split_idx=0, num=None):
            if cls.should_split_bw:
                cls.weight_grad_queue[chunk].put(cls.cache)
                cls.cache = []

        @classmethod
        def pop(cls, chunk=0, seq_split_idx=0, clear=False):
            done.append(cls.weight_grad_queue[chunk].get()[0])

        @classmethod
        def clear(cls, model, chunk=0, seq_split_idx=0):
            while cls.weight_grad_queue[chunk].qsize() > 0:
                cls.pop(chunk, seq_split_idx, clear=True)

    utils.WeightGradStore = WeightGradStore

    class TrainingIteration:
        def __init__(self, config):
            self.iteration_config = config
            self.states = types.SimpleNamespace(it=0)
            WeightGradStore.weight_grad_queue = [queue.Queue(), queue.Queue()]

        def run(self):
            nodes = self.iteration_config.schedules
            cleared = set()
            for place, node in enumerate(nodes):
                if node.type is FuncType.F:
                    self.schedule_f_impl(node)
                elif self.iteration_config.forward_only:
                    continue
                elif node.type is FuncType.W:
                    if any(later.type is not FuncType.W for later in nodes[place + 1 :]):
                        WeightGradStore.pop(chunk=node.chunk, seq_split_idx=node.seq_split_idx)
                    elif node.chunk not in cleared:
                        cleared.add(node.chunk)
                        WeightGradStore.clear(None, chunk=node.chunk, seq_split_idx=node.seq_split_idx)
                else:
                    WeightGradStore.should_split_bw = node.type is FuncType.B
                    self.schedule_b_impl(node)
                    WeightGradStore.should_split_bw = False
            return ["loss"]

        def schedule_f_impl(self, scheduled_node):
            current.append(scheduled_node)
            runtime.forward_step(None, None, None, microbatches, [None], [], None, current_microbatch=0)

        def schedule_b_impl(self, scheduled_node):
            current.append(scheduled_node)
            runtime.backward_step([None], [Tensor()], [None], None, None)
            WeightGradStore.cache.append(f"W{scheduled_node.layer_group_idx}.{scheduled_node.microbatch}")
            if not WeightGradStore.should_split_bw:
                WeightGradStore.cache.clear()
            WeightGradStore.flush(chunk=scheduled_node.chunk, seq_split_idx=scheduled_node.seq_split_idx)

    runtime.TrainingIteration = TrainingIteration

    def iteration(*, forward_only=False, seq_split_idx=0):
        nodes = [
            ScheduledNode(FuncType[kind], rank, microbatch, chunk, seq_split_idx, stage)
            for kind, microbatch, chunk, stage in plan(name, rank, ranks, microbatches, **options)
        ]
        return TrainingIteration(
            types.SimpleNamespace(schedules=nodes, forward_only=forward_only, num_microbatches=microbatches)
        )

    runtime.iteration = iteration
    return {
        points.RUNTIME: runtime,
        points.GRADIENTS.partition(":")[0]: utils,
        points.STATE: parallel_state(rank, ranks),
    }


def pipe(algorithm, name, rank, ranks, microbatches, *, merges=False, **options):
    """Return the modules by name; `launcher.launch()` runs the plan. `merges` uses the combined step for all."""
    launcher, cache_module = types.ModuleType(points.LAUNCHER), types.ModuleType("wgrad_handler")
    handlers = {
        each: types.ModuleType(f"{points.HANDLERS}.{each}")
        for each in ("fwd_handler", "bwd_handler", "combined_fwd_bkwd_handler")
    }
    launcher.done = done = []
    made = {}
    chunks = 2 if name in ("v-half", "v-min", "interleaved") else 1
    is_v = name in ("v-half", "v-min")

    def stage_of(chunk):
        return chunk * ranks + (ranks - 1 - rank if is_v and chunk == 1 else rank)

    def label(kind, microbatch, stage):
        letter = {"B": "B" if WGradRunningCache.cur_minibatch is None else "I"}.get(kind, kind)
        return f"{letter}{stage}.{microbatch}"

    def place(kind, given, chunk=None):
        microbatch, chunk = (given, chunk) if kind == "F" else made[id(given[0])]
        return kind, microbatch, stage_of(chunk)

    forward, backward, combined = megatron(done, place, label)
    handlers["fwd_handler"].forward_step = forward
    handlers["bwd_handler"].backward_step = backward
    for module in handlers.values():
        module.combined_forward_backward_step = combined

    class WGradRunningCache:
        cur_minibatch = None
        cur_chunk = None

        @classmethod
        def set_current_minibatch_and_chunk(cls, minibatch, chunk):
            cls.cur_minibatch, cls.cur_chunk = minibatch, chunk

        @classmethod
        def flush(cls, minibatch, chunk):
            done.append(f"W{stage_of(chunk)}.{minibatch}")

    cache_module.WGradRunningCache = WGradRunningCache
    no_backward = dict.fromkeys(["b_model", "b_input_tensor", "b_output_tensor", "b_output_tensor_grad"])
    no_forward = dict.fromkeys(
        ["f_model", "f_model_chunk_id", "forward_step_func", "data_iterator", "num_microbatches"]
    )
    inputs = {
        "forward_step_func": None,
        "data_iterator": None,
        "num_microbatches": microbatches,
        "input_tensor": None,
        "forward_data_store": [],
        "config": None,
    }

    class PrimusPipelineParallelLauncher:
        def __init__(self):
            self.pp_algorithm, self.pp_size, self.vpp_size, self.pp_rank = algorithm, ranks, chunks, rank
            self.outputs = {}
            self.actions = ()

        def run(
            self,
            *,
            forward_step_func,
            data_iterator,
            model,
            num_microbatches,
            seq_length,
            micro_batch_size,
            forward_only=False,
        ):
            for action in self.actions or plan(name, rank, ranks, microbatches, **options):
                getattr(self, action[0].lower())(*action[:3])

        def keep(self, result, microbatch, chunk):
            self.outputs[microbatch, chunk] = result[0]
            made[id(result[0][0])] = (microbatch, chunk)

        def f(self, _, microbatch, chunk):
            handler = handlers["fwd_handler"]
            if merges:
                result = handler.combined_forward_backward_step(
                    **inputs,
                    **no_backward,
                    f_model="model",
                    f_model_chunk_id=chunk,
                    current_microbatch=microbatch,
                )
            else:
                result = handler.forward_step(
                    **inputs,
                    model="model",
                    vp_stage=chunk,
                    cp_group_size=1,
                    is_last_stage=False,
                    current_microbatch=microbatch,
                )
            self.keep(result, microbatch, chunk)

        def b(self, kind, microbatch, chunk):
            given = (microbatch, chunk) if kind == "B" else (None, None)
            WGradRunningCache.set_current_minibatch_and_chunk(*given)
            handler, outputs = handlers["bwd_handler"], self.outputs.pop((microbatch, chunk))
            if merges:
                handler.combined_forward_backward_step(
                    **inputs | no_forward,
                    b_model="model",
                    b_input_tensor=[None],
                    b_output_tensor=outputs,
                    b_output_tensor_grad=[None],
                    current_microbatch=microbatch,
                )
            else:
                handler.backward_step(
                    input_tensor=[None],
                    output_tensor=outputs,
                    output_tensor_grad=[None],
                    model_type=None,
                    config=None,
                )

        bw = b

        def w(self, _, microbatch, chunk):
            WGradRunningCache.flush(microbatch, chunk)

        def fb(self, _, forward, backward):
            """Run a pair as the combined handler does; both are micro-batch and chunk."""
            WGradRunningCache.set_current_minibatch_and_chunk(*backward)
            result = handlers["combined_fwd_bkwd_handler"].combined_forward_backward_step(
                **inputs,
                f_model="model",
                b_model="model",
                b_input_tensor=[None],
                b_output_tensor=self.outputs.pop(backward),
                b_output_tensor_grad=[None],
                f_model_chunk_id=forward[1],
                current_microbatch=forward[0],
            )
            self.keep(result, *forward)

    launcher.PrimusPipelineParallelLauncher = PrimusPipelineParallelLauncher

    def launch(actions=(), **more):
        given = dict.fromkeys(
            ["forward_step_func", "data_iterator", "model", "seq_length", "micro_batch_size"]
        )
        one = PrimusPipelineParallelLauncher()
        one.actions = actions
        return one.run(**given, num_microbatches=microbatches, **more)

    launcher.launch = launch
    return {
        points.LAUNCHER: launcher,
        points.GRADIENT_CACHE.partition(":")[0]: cache_module,
        points.STATE: parallel_state(rank, ranks),
        **{f"{points.HANDLERS}.{each}": module for each, module in handlers.items()},
    }
