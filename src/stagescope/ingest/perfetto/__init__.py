"""Reader of Perfetto's protobuf traces (.pftrace)."""
