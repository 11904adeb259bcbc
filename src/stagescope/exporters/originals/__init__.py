"""The original traces of all ranks, with every event, on the aligned clock."""
