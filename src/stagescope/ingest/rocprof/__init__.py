"""Reader of traces of AMD's rocprofv3: roctx ranges and the kernels launched inside them.

results_json.py reads its JSON, rocpd.py its SQLite databases; ingest/device_ranges makes one Timeline of all.
"""
