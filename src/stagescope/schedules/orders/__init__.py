"""One module per schedule or close family, each with its `Schedule` entries; `catalog` lists them.

The formulas use the papers' letters: p ranks, r this rank (from 0), m micro-batches, v chunks per rank, N the
group size of an interleaved schedule. F, B, I and W are the actions and their times.
"""
