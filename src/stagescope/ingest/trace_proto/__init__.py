"""The shared decoder of Perfetto's protobuf traces: packets, sequences, track events and slices."""
