"""OpenTelemetry traces (OTLP): reading files of spans, and receiving spans over HTTP.

messages.py     the messages, and their JSON
protobuf.py     the same messages from protobuf
names.py        what names and attributes mean
processes.py    the spans of each process
links.py        transfers and their micro-batches
reader.py       files
receiver.py     an HTTP server on the loopback interface
limits.py       what a request may take
"""
