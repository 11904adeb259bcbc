"""What the counters of a run show: memory of the ranks, throughput, sizes of micro-batches, and slow clocks."""
