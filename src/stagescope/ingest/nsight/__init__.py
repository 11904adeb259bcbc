"""Reader of NVIDIA Nsight Systems reports, exported to SQLite: NVTX ranges and the kernels launched inside them.

report.py reads one database, process_trace.py turns it into processes, timeline.py combines the reports of a run.
"""
