"""One module per input format; none imports another."""
