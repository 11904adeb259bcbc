"""Which schedule and which division into stages would be fastest for given costs."""
