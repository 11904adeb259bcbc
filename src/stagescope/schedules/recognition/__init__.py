"""Which schedule a measured order is."""
