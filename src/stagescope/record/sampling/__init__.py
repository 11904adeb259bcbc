"""Slow counters, read by the writer thread: at most once a second, never by the training's own threads.

`sampler.py` decides when; `host.py`, `memory.py` and `gpu.py` read the counters of the process, of the framework's
allocator and of the GPU.
"""
