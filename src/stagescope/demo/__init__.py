"""The training that `stagescope demo` records: an ordinary script that does not use stagescope."""
