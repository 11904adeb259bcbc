"""Reader of NVIDIA Nsight Systems reports: NVTX ranges and the kernels launched inside them.

schema.py declares the tables, report.py and parquet_report.py read one exported report, native_report.py exports a
.nsys-rep with nsys, and ingest/device_ranges makes one Timeline of all.
"""
