"""Ascend profiles: what the profilers of torch_npu, MindSpore and msMonitor write, step by step to tables.

discovery and database find and open the files, markers and metadata take from one rank what it says, naming gives
every action its place in the schedule, transfers gives every message its two ends.
"""
