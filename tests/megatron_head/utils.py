"""The structure of megatron/core/pipeline_parallel/utils.py: a part of a layer that runs in one direction at a time."""

from __future__ import annotations


class ScheduleNode:
    def __init__(self, forward_func):
        self.forward_func = forward_func

    def forward(self, inputs=()):
        return self.forward_func(inputs)

    def backward(self, output_grad):
        return self.forward_func(output_grad)
