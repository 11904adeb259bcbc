"""A replacement of MindSpeed's DualPipeV with the functions, arguments and queues of dualpipev_schedules.py.

`make` returns the module for one rank of a pipeline. Its run passes objects on as the real one does: per chunk a
queue of inputs, outputs and graphs, postponed weight gradients in `WeightGradStore.cache`, and micro-batches of the
second chunk that continue the numbers of the first. The executed actions are in `done`, in the notation of schedules.
FlagScale's copy differs in its name, its entry and the absence of postponed weight gradients.
"""

# ruff: noqa: ARG001, ARG003, FBT002, PLR0915, PLR0917 - the signatures are MindSpeed's

from __future__ import annotations

import queue
import types

from stagescope import schedules
from stagescope.record.points import mindspeed as points


class Tensor:
    """An object with an identity and a size."""

    def __init__(self, what=""):
        self.what = what

    def numel(self):
        return 6

    def element_size(self):
        return 4


class Graph:
    """What the model's forward leaves for its backward."""

    def __init__(self, action):
        self.action = action


def modules_of(module):
    """Return the modules that `module` imports from, by name."""
    modules = {points.STATE: module.parallel_state}
    if hasattr(module, "WeightGradStore"):
        modules[points.STORES[0].partition(":")[0]] = module
    return modules


def entry_of(module):
    """Return the schedule of a module."""
    name = "dualpipev" if module.__name__ == points.MODULE_OF_FLAGSCALE else "cutinhalf"
    return getattr(module, f"forward_backward_pipelining_with_{name}")


def make(
    rank,
    ranks,
    *,
    microbatches,
    split_cooldown=True,
    empty_pops=0,
    has_graphs=True,
    is_old=False,
    name=points.MODULE_OF_MINDSPEED,
):
    """Return the module for one rank; `empty_pops` more pops find an empty cache, as they may in the real cool-down.

    With `is_old` the keys of overlapped backwards are those of MindSpeed's core_r0.8.0, which FlagScale has as well.
    Without graphs nothing overlaps (`moe_fb_overlap` is off), and backwards go through Megatron's ``backward_step``.

    FlagScale's module, with that `name`, has another entry and no WeightGradStore: nothing is postponed.
    """
    is_split = name == points.MODULE_OF_MINDSPEED
    is_new = is_split and not is_old
    keys = ("bwd_block_graphs", "bwd_block_output_grad") if is_new else ("bwd_model_graph", "bwd_model_grad")
    module = types.ModuleType(name)
    module.done = done = []
    module.parallel_state = types.SimpleNamespace(
        get_pipeline_model_parallel_rank=lambda: rank,
        get_pipeline_model_parallel_world_size=lambda: ranks,
        get_pipeline_model_parallel_next_rank=lambda: (rank + 1) % ranks,
        get_pipeline_model_parallel_prev_rank=lambda: (rank - 1) % ranks,
        get_data_parallel_world_size=lambda: 2,
        get_tensor_model_parallel_world_size=lambda: 1,
        get_data_parallel_rank=lambda: 1,
    )

    class WeightGradStore:
        cache = []  # noqa: RUF012  # as in MindSpeed
        weight_grad_queue = queue.Queue()
        is_decoupleBlock = False  # noqa: N815  # as in MindSpeed

        @classmethod
        def start_decouple(cls):
            cls.is_decoupleBlock = True

        @classmethod
        def end_decouple(cls):
            cls.is_decoupleBlock = False

        @classmethod
        def flush_chunk_grad(cls):
            cls.weight_grad_queue.put(cls.cache)
            cls.cache = []

        @classmethod
        def pop(cls, overlap_arg=None):
            if len(cls.cache) == 0:
                return
            actions = {cls.cache.pop(0) for _ in range(len(cls.cache))}
            done.extend(f"W{action}" for action in actions)

        @classmethod
        def pop_single(cls):
            if cls.weight_grad_queue.empty():
                return
            cls.cache = cls.weight_grad_queue.get()
            cls.pop()

    if is_split:
        module.WeightGradStore = WeightGradStore

    def action_of(chunk, current_microbatch):
        stage = rank if chunk == 0 else 2 * ranks - 1 - rank
        return f"{stage}.{current_microbatch - chunk * microbatches}"

    def run_backward(graph):
        done.append(f"{'I' if WeightGradStore.is_decoupleBlock else 'B'}{graph.action}")
        if WeightGradStore.is_decoupleBlock:
            WeightGradStore.cache += [graph.action, graph.action]
        return Tensor(f"gradient of {graph.action}")

    def forward_step_with_model_graph(
        forward_step_func,
        model_chunk_id,
        data_iterator,
        model,
        num_microbatches,
        input_tensor,
        forward_data_store,
        config,
        collect_non_loss_data=False,
        checkpoint_activations_microbatch=None,
        is_first_microbatch=False,
        current_microbatch=None,
        extra_block_kwargs=None,
    ):
        action = action_of(model_chunk_id, current_microbatch)
        output, graph = Tensor(f"output of {action}"), Graph(action)
        if extra_block_kwargs is None:
            done.append(f"F{action}")
            return (output, graph), 0
        WeightGradStore.start_decouple()
        backward = extra_block_kwargs[keys[0]]
        WeightGradStore.cache.append(backward.action)
        WeightGradStore.pop()
        WeightGradStore.end_decouple()
        done[-1:] = [f"F{action}+B{backward.action}"]
        return (output, graph, types.SimpleNamespace(input_tensor_grad=Tensor())), 0

    def forward_step_no_model_graph(
        forward_step_func,
        model_chunk_id,
        data_iterator,
        model,
        num_microbatches,
        input_tensor,
        forward_data_store,
        config,
        collect_non_loss_data=False,
        checkpoint_activations_microbatch=None,
        is_first_microbatch=False,
        current_microbatch=None,
    ):
        action = action_of(model_chunk_id, current_microbatch)
        done.append(f"F{action}")
        output = Tensor()
        output.graph = Graph(action)
        return output, 0

    def backward_step_with_model_graph(
        input_tensor, output_tensor, output_tensor_grad, model_type, config, model_graph=None
    ):
        if model_graph is None:
            done.append("logits")
            return Tensor("gradient of the logits")
        return run_backward(model_graph)

    def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
        return run_backward(output_tensor.graph)

    def _communicate(*, tensor_send_next, tensor_send_prev, recv_prev, recv_next, **_):
        return (Tensor("received") if recv_prev else None), (Tensor("received") if recv_next else None), []

    def send_forward(output_tensor, tensor_shape, config, model_chunk_id, async_op=False):
        upwards = model_chunk_id == 1
        module._communicate(
            tensor_send_next=None if upwards else output_tensor,
            tensor_send_prev=output_tensor if upwards else None,
            recv_prev=False,
            recv_next=False,
        )

    def recv_forward(tensor_shape, config, model_chunk_id, async_op=False):
        first = rank == (0 if model_chunk_id == 0 else ranks - 1)
        if first:
            return None, None
        moved = module._communicate(
            tensor_send_next=None,
            tensor_send_prev=None,
            recv_prev=model_chunk_id == 0,
            recv_next=model_chunk_id == 1,
        )
        return moved[model_chunk_id], None

    def send_forward_recv_slave_forward(output_tensor, tensor_shape, config, model_chunk_id, async_op=False):
        if rank == (ranks - 1 if model_chunk_id == 0 else 0):
            return None, None
        moved = module._communicate(
            tensor_send_next=output_tensor if model_chunk_id == 0 else None,
            tensor_send_prev=output_tensor if model_chunk_id == 1 else None,
            recv_next=model_chunk_id == 0,
            recv_prev=model_chunk_id == 1,
        )
        return moved[1 - model_chunk_id], []

    def run(forward_only):
        pipeline = _Run(module, (rank, ranks, microbatches), forward_only, keys if has_graphs else ())
        pipeline.run(split_cooldown, empty_pops)

    def forward_backward_pipelining_with_cutinhalf(
        *,
        forward_step_func,
        data_iterator,
        model,
        num_microbatches,
        seq_length,
        micro_batch_size,
        forward_only=False,
    ):
        run(forward_only)
        return ["loss"]

    def forward_backward_pipelining_with_dualpipev(
        *,
        forward_step_func,
        data_iterator,
        model,
        num_microbatches,
        seq_length,
        micro_batch_size,
        forward_only=False,
        adjust_tensor_shapes_fn=None,
    ):
        run(forward_only)
        return ["loss"]

    for function in list(locals().values()):
        if isinstance(function, types.FunctionType):
            setattr(module, function.__name__, function)
    delattr(module, f"forward_backward_pipelining_with_{'dualpipev' if is_split else 'cutinhalf'}")
    return module


class _Run:
    """One run of a schedule: the queues between its functions."""

    def __init__(self, module, shape, forward_only, keys):
        self.module = module
        self.rank, self.ranks, self.microbatches = shape
        self.forward_only = forward_only
        self.has_graphs, self.keys = bool(keys), keys
        self.inputs, self.outputs, self.graphs = ([], []), ([], []), ([], [])
        self.store = getattr(module, "WeightGradStore", None)

    def run(self, split_cooldown, empty_pops):
        sizes = {"ranks": self.ranks, "microbatches": self.microbatches}
        order = schedules.order("dualpipev", split_cooldown=split_cooldown, **sizes)[self.rank]
        if self.forward_only:
            order = [action for action in order if action.kind == "F"]
        if self.store is None:
            order = [action for action in order if action.kind != "W"]
        for action, after in zip(order, [*order[1:], None], strict=True):
            backward = None if self.forward_only else action.partner
            if action.kind == "F":
                self.forward(action, backward)
            elif action.kind == "W":
                self.store.pop()
                self.store.pop_single()
            else:
                is_split = action.kind == "I" and self.store is not None
                self.backward(action, is_split=is_split)
                follows = after is not None and after.kind == "W" and after.parts[0][1:3] == action[1:3]
                if is_split and not follows:
                    self.store.flush_chunk_grad()
        for _ in range(empty_pops):
            self.store.pop()
            self.store.pop_single()

    def forward(self, action, backward):
        chunk = 0 if action.stage < self.ranks else 1
        input_tensor, _ = self.module.recv_forward(None, None, chunk)
        extra = None
        if backward is not None and self.has_graphs:
            gradient = self.logits(1 - chunk)
            extra = dict(zip(self.keys, (self.graphs[1 - chunk].pop(0), gradient), strict=True))
        number = action.microbatch + chunk * self.microbatches
        arguments = (None, chunk, None, None, self.microbatches, input_tensor, [], None, False, None)
        if self.has_graphs:
            result, _ = self.module.forward_step_with_model_graph(
                *arguments, current_microbatch=number, extra_block_kwargs=extra
            )
        else:
            result = (
                self.module.forward_step_no_model_graph(*arguments, current_microbatch=number)[0],
                None,
            )
        if extra is not None:
            self.inputs[1 - chunk].pop(0)
            self.outputs[1 - chunk].pop(0)
        self.inputs[chunk].append(input_tensor)
        self.outputs[chunk].append(result[0])
        self.graphs[chunk].append(result[1])
        last = self.rank == (self.ranks - 1 if chunk == 0 else 0)
        if not last:
            self.module.send_forward(result[0], None, None, chunk)
        if backward is not None and extra is None:
            self.backward(backward, is_split=False)

    def logits(self, chunk):
        """Run the backward of the loss, which the first rank has before each backward of the second chunk."""
        if self.rank or not chunk or not self.has_graphs:
            return None
        return self.module.backward_step_with_model_graph(None, self.outputs[1][0], None, None, None, None)

    def backward(self, action, *, is_split):
        chunk = 0 if action.stage < self.ranks else 1
        if is_split:
            self.store.start_decouple()
        arguments = [self.inputs[chunk].pop(0), self.outputs[chunk][0], self.logits(chunk), None, None]
        self.outputs[chunk].pop(0)
        graph = self.graphs[chunk].pop(0)
        if self.has_graphs:
            gradient = self.module.backward_step_with_model_graph(*arguments, graph)
        else:
            gradient = self.module.backward_step(*arguments)
        if is_split:
            self.store.end_decouple()
        self.module.send_forward_recv_slave_forward(gradient, None, None, 1 - chunk)
