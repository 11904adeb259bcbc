"""Reader of profiles of JAX and XLA (xplane.pb): kernels in named scopes that are pipeline actions.

xspace.py decodes the file, scopes.py finds the actions, ingest/device_ranges makes one Timeline of all.
"""
