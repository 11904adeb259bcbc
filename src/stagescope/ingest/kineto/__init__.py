"""Reader of torch.profiler (Kineto) traces; docs/kineto.md describes what is found and how.

tables.py reads one trace, rank_trace.py turns it into the actions of one rank, timeline.py combines the ranks.
"""
