"""Reader of Ascend profiles: the databases of torch_npu's and MindSpore's profilers and of msMonitor.

`discovery` and `ingest/database.py` find and open the files, `markers` and `metadata` read one rank, `naming` assigns
every action its place in the schedule, `pairing` matches both ends of every message.
"""
