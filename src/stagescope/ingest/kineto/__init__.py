"""Chrome-trace JSON in pieces, and the actions of a pipeline in the traces of torch.profiler (Kineto).

trace_events.py reads any Chrome trace as a stream; the other modules know what Kineto writes. docs/kineto.md tells
what is found how.
"""
