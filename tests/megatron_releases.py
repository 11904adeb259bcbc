"""Replacements with the signatures and the behavior of older releases of Megatron-core, in one process without torch.

They differ in what the recorder has to find out (read in megatron-core 0.5.0, 0.8.0, 0.9.0 and 0.12.3):

* before 0.7 ``forward_step`` receives no micro-batch, and before 0.13 no chunk. The schedule sets the chunk in
  ``parallel_state`` and passes the chunk's model;
* before 0.9 the functions that issue transfers receive no neighbors, and until 0.9 ``_p2p_ops`` returns a list in an
  order that depends on the parity of the rank.
"""

# ruff: noqa: ARG001, FBT002, PLR0917  # the signatures are Megatron's

from __future__ import annotations

import inspect
import types
from typing import NamedTuple

from megatron_head.p2p_communication import Tensor, Work

DIRECTIONS = ("send_next", "recv_prev", "send_prev", "recv_next")


class Release(NamedTuple):
    """What a release passes and returns."""

    version: str
    passes_microbatch: bool
    passes_neighbors: bool
    returns_list: bool


RELEASES = (
    Release("0.5.0", passes_microbatch=False, passes_neighbors=False, returns_list=True),
    Release("0.8.0", passes_microbatch=True, passes_neighbors=False, returns_list=True),
    Release("0.9.0", passes_microbatch=True, passes_neighbors=True, returns_list=True),
    Release("0.12.3", passes_microbatch=True, passes_neighbors=True, returns_list=False),
)


class Models:
    """The modules of a release on one rank; its neighbors are the global ranks `previous` and `following`."""

    def __init__(self, release: Release, rank: int, size: int, *, previous=30, following=50):
        self.release = release
        self.neighbors = {"prev_pipeline_rank": previous, "next_pipeline_rank": following}
        self.parallel_state = _parallel_state(rank, size, previous, following)
        self.p2p_communication = types.ModuleType("megatron.core.pipeline_parallel.p2p_communication")
        self.schedules = types.ModuleType("megatron.core.pipeline_parallel.schedules")
        self.p2p_communication._batched_p2p_ops = self._issuer(in_order=True)
        self.p2p_communication._p2p_ops = self._issuer(in_order=False)
        self._add_actions()
        self._add_schedules()

    def modules(self):
        """The modules by name, as in sys.modules."""
        modules = (self.parallel_state, self.p2p_communication, self.schedules)
        return {module.__name__: module for module in modules}

    def _issuer(self, *, in_order):
        """Return ``_batched_p2p_ops``, which is in order, or ``_p2p_ops``."""
        state, release = self.parallel_state, self.release

        def issue(tensors):
            is_even = state.get_pipeline_model_parallel_rank() % 2 == 0
            odd = ("recv_prev", "send_next", "recv_next", "send_prev")
            order = sorted(DIRECTIONS, reverse=True) if in_order else DIRECTIONS if is_even else odd
            works = {name: Work(name) for name in order if tensors[f"tensor_{name}"] is not None}
            return list(works.values()) if in_order or release.returns_list else works

        def _p2p_ops(*, tensor_send_prev, tensor_recv_prev, tensor_send_next, tensor_recv_next, group):
            return issue(locals())

        def _p2p_ops_with_neighbors(
            *, tensor_send_prev, tensor_recv_prev, tensor_send_next, tensor_recv_next, group,
            prev_pipeline_rank, next_pipeline_rank,
        ):  # fmt: skip
            return issue(locals())

        chosen = _p2p_ops_with_neighbors if release.passes_neighbors else _p2p_ops
        chosen.__name__ = "_batched_p2p_ops" if in_order else "_p2p_ops"
        return chosen

    def _add_actions(self):
        schedules = self.schedules

        def forward_step(
            forward_step_func, data_iterator, model, num_microbatches, input_tensor, forward_data_store, config,
            collect_non_loss_data=False, checkpoint_activations_microbatch=None, is_first_microbatch=False,
        ):  # fmt: skip
            return Tensor()

        def forward_step_of_a_microbatch(
            forward_step_func, data_iterator, model, num_microbatches, input_tensor, forward_data_store, config,
            collect_non_loss_data=False, checkpoint_activations_microbatch=None, is_first_microbatch=False,
            current_microbatch=None,
        ):  # fmt: skip
            return Tensor(), 1

        def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
            return Tensor()

        schedules.forward_step = (
            forward_step_of_a_microbatch if self.release.passes_microbatch else forward_step
        )
        schedules.backward_step = backward_step

    def _add_schedules(self):
        def forward_backward_pipelining_with_interleaving(
            *, forward_step_func, data_iterator, model, num_microbatches, seq_length, micro_batch_size,
            decoder_seq_length=None, forward_only=False, collect_non_loss_data=False, first_val_step=None,
        ):  # fmt: skip
            return self._interleaved(model, num_microbatches)

        def other(
            *, forward_step_func, data_iterator, model, num_microbatches, seq_length, micro_batch_size,
            decoder_seq_length=None, forward_only=False, collect_non_loss_data=False, first_val_step=None,
        ):  # fmt: skip
            raise NotImplementedError

        self.schedules.forward_backward_no_pipelining = other
        self.schedules.forward_backward_pipelining_without_interleaving = other
        self.schedules.forward_backward_pipelining_with_interleaving = (
            forward_backward_pipelining_with_interleaving
        )

    def _interleaved(self, model, microbatches):
        """All forwards, chunk by chunk, then all backwards; every action receives its input and sends its output."""
        done = []
        for chunk, each in enumerate(model):
            for microbatch in range(microbatches):
                self.parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
                received = self.move(recv_prev=True)
                more = {"current_microbatch": microbatch} if self.release.passes_microbatch else {}
                made = self.schedules.forward_step(None, None, each, microbatches, received, [], None, **more)
                made = made[0] if isinstance(made, tuple) else made
                self.move(tensor_send_next=made)
                done.append((chunk, received, made))
        for chunk, received, made in sorted(done, key=lambda one: -one[0]):
            self.parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
            gradient = self.move(recv_next=True)
            returned = self.schedules.backward_step(received, made, gradient, None, None)
            self.move(tensor_send_prev=returned)
        return ["loss"]

    def move(self, *, recv_prev=False, recv_next=False, **sent):
        """Transfer tensors, wait for all of them, and return the one that was received."""
        issue = self.p2p_communication._p2p_ops
        tensors = dict.fromkeys([f"tensor_{name}" for name in DIRECTIONS]) | sent
        for name, wanted in (("tensor_recv_prev", recv_prev), ("tensor_recv_next", recv_next)):
            tensors[name] = Tensor() if wanted else None
        known = inspect.signature(issue).parameters
        neighbors = {name: rank for name, rank in self.neighbors.items() if name in known}
        works = issue(**tensors, group=object(), **neighbors)
        for work in works.values() if isinstance(works, dict) else works:
            work.wait()
        return tensors["tensor_recv_prev"] or tensors["tensor_recv_next"]


def _parallel_state(rank, size, previous, following):
    """Return the functions of parallel_state that the pipeline uses."""
    state = types.ModuleType("megatron.core.parallel_state")
    chunk = [0]
    state.get_pipeline_model_parallel_rank = lambda: rank
    state.get_pipeline_model_parallel_world_size = lambda: size
    state.get_pipeline_model_parallel_prev_rank = lambda: previous
    state.get_pipeline_model_parallel_next_rank = lambda: following
    state.get_virtual_pipeline_model_parallel_rank = lambda: chunk[0]
    state.set_virtual_pipeline_model_parallel_rank = lambda value: chunk.__setitem__(0, value)
    return state
