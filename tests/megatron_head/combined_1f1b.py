"""The structure of megatron/core/pipeline_parallel/combined_1f1b.py."""
# ruff: noqa: ARG001, FBT002, PLR0917  # the signatures are Megatron's

from __future__ import annotations


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
    if f_model is not None and pre_forward is not None:
        pre_forward(f_model_chunk_id)
    if b_model is not None and pre_backward is not None:
        pre_backward(0)
    if f_model is not None:
        made = forward_step_func(input_tensor)
        if post_forward is not None:
            post_forward(made, f_model_chunk_id)
    if b_model is not None:
        grad = forward_step_func(b_output_tensor_grad)
        if post_backward is not None:
            post_backward(grad, 0)
    return made, 1, grad
