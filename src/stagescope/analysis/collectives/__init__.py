"""Collectives of a run: what waiting for them costs, and which ranks come late to them."""
