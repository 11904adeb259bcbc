"""The parts of the check on a GPU, `benchmarks/gpu_check.py`: one module each, or one for two that belong together."""
