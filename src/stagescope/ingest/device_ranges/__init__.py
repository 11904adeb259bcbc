"""Project ranges that a training marks on the host to the device work that was launched inside them.

Several profilers record the same three things: named ranges on host threads (NVTX, roctx, TraceAnnotation), launches
on the same threads, and kernels with the number of their launch. trace.py declares what a reader provides of one file,
process_trace.py turns it into processes, timeline.py combines the files of a run.
"""
