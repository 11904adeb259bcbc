"""The training that `stagescope demo` records: an ordinary script that knows nothing of stagescope."""
