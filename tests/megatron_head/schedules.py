"""The structure of megatron/core/pipeline_parallel/schedules.py, whose backward no longer receives the model's type."""
# ruff: noqa: ARG001, FBT002, PLR0917  # the signatures are Megatron's

from __future__ import annotations

from megatron_head import combined_1f1b
from megatron_head.p2p_communication import Tensor


def forward_step(
    forward_step_func,
    data_iterator,
    model,
    num_microbatches,
    input_tensor,
    forward_data_store,
    config,
    cp_group_size,
    collect_non_loss_data=False,
    checkpoint_activations_microbatch=None,
    is_first_microbatch=False,
    current_microbatch=None,
    vp_stage=None,
    is_last_stage=True,
):
    made = forward_step_func(input_tensor)
    return ([made], 1) if isinstance(input_tensor, list) else (made, 1)


def backward_step(input_tensor, output_tensor, output_tensor_grad, config):
    return [Tensor()] if isinstance(input_tensor, list) else Tensor()


def backward_step_multimodule(
    input_tensor, output_tensor, output_tensor_grad, config, language_model_module_name
):
    return {name: Tensor() for name in input_tensor}


def forward_backward_no_pipelining(
    *, forward_step_func, data_iterator, model, num_microbatches, forward_only=False, p2p_communicator=None
):
    for i in range(num_microbatches):
        output_tensor, _ = forward_step(
            forward_step_func, data_iterator, model, num_microbatches, None, [], None, 1, current_microbatch=i
        )
        if not forward_only:
            backward_step(None, output_tensor, None, None)
    return ["loss"]


def forward_backward_pipelining_without_interleaving(
    *, forward_step_func, data_iterator, model, num_microbatches, forward_only=False, p2p_communicator=None
):
    """1F1B on the second of three ranks: one warm-up micro-batch."""
    link = p2p_communicator
    waiting = []
    received, _, _ = link.communicate(batched=True, recv_prev=True)
    for i in range(num_microbatches):
        output_tensor, _ = forward_step(
            forward_step_func, data_iterator, model, num_microbatches, [received], [], None,
            cp_group_size=1, current_microbatch=i,
        )  # fmt: skip
        taken, waiting = received, [*waiting, (received, output_tensor)]
        more = i + 1 < num_microbatches
        if forward_only or not i:
            link.communicate(batched=True, send_next=output_tensor[0])
            received = link.communicate(batched=True, recv_prev=True)[0] if more else None
            continue
        _, grad, _ = link.communicate(batched=True, send_next=output_tensor[0], recv_next=True)
        taken, made = waiting.pop(0)
        input_grad = backward_step([taken], made, [grad], None)
        received, _, _ = link.communicate(batched=True, send_prev=input_grad[0], recv_prev=more)
    while waiting and not forward_only:
        _, grad, _ = link.communicate(batched=True, recv_next=True)
        taken, made = waiting.pop(0)
        input_grad = backward_step([taken], made, [grad], None)
        link.communicate(batched=True, send_prev=input_grad[0])
    return ["loss"]


def forward_backward_pipelining_with_interleaving(
    *, forward_step_func, data_iterator, model, num_microbatches, forward_only=False, p2p_communicator=None
):
    """One forward of chunk 0, then a merged call: the forward of chunk 1 and the backward of chunk 0."""
    link = p2p_communicator
    received, _, handles = link.communicate(batched=False, recv_prev=True, wait=False)
    handles["recv_prev"].wait()
    output_tensor, _ = forward_step(
        forward_step_func, data_iterator, model[0], num_microbatches, received, [], None,
        cp_group_size=1, current_microbatch=4, vp_stage=0,
    )  # fmt: skip
    link.communicate(batched=False, send_next=output_tensor)
    received, grad, handles = link.communicate(batched=False, recv_prev=True, recv_next=True, wait=False)
    combined_1f1b.combined_forward_backward_step(
        forward_step_func, data_iterator, model[1], num_microbatches, received, [],
        model[0], None, output_tensor, grad, None,
        f_model_chunk_id=1,
        pre_forward=lambda vp_stage: handles["recv_prev"].wait(),
        post_forward=lambda made, vp_stage: link.communicate(batched=False, send_next=made),
        pre_backward=lambda vp_stage: handles["recv_next"].wait(),
        post_backward=lambda made, vp_stage: link.communicate(batched=False, send_prev=made),
        current_microbatch=4,
    )  # fmt: skip
    return ["loss"]
