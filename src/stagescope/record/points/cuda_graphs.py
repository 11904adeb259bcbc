"""What is observed in torch.cuda.graphs (read in torch 2.5.0 to 2.15.0, torch/cuda/graphs.py)."""

from __future__ import annotations

from stagescope.record.points import Part, Point

GRAPH = "torch.cuda.graphs:CUDAGraph"

PARTS = (
    Part(
        "torch.cuda.graphs",
        "torch",
        "2.5-2.15",
        "torch.cuda.graphs",
        "stagescope.record.devices.cuda_graphs",
        (
            Point(GRAPH, "capture_begin", "capture_begin"),
            Point(GRAPH, "capture_end", "capture_end"),
            Point(GRAPH, "replay", "replay"),
        ),
    ),
)
