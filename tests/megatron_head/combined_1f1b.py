"""The structure of megatron/core/pipeline_parallel/combined_1f1b.py."""
# ruff: noqa: ARG001, FBT002, PLR0917  # the signatures are Megatron's

from __future__ import annotations

from megatron_head.utils import ScheduleNode


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
    pre_forward=None,
    pre_backward=None,
    post_forward=None,
    post_backward=None,
    collect_non_loss_data=False,
    checkpoint_activations_microbatch=None,
    is_first_microbatch=False,
    current_microbatch=None,
    encoder_decoder_xattn=False,
    fsdp_wrapper=None,
):
    made = grad = None
    node = ScheduleNode(forward_step_func)
    if f_model is not None:
        if pre_forward is not None:
            pre_forward(f_model_chunk_id)
        made = node.forward(input_tensor)
    if b_model is not None:
        if pre_backward is not None:
            pre_backward(0)
        grad = node.backward(b_output_tensor_grad)
    if f_model is not None and post_forward is not None:
        post_forward(made, f_model_chunk_id)
    if b_model is not None and post_backward is not None:
        post_backward(grad, 0)
    return made, 1, grad
