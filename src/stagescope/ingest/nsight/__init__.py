"""Reports of NVIDIA Nsight Systems, exported to SQLite: NVTX ranges, and the kernels that were launched inside them.

readers/nsight.py is the entry, timeline.py puts reports together.
"""
