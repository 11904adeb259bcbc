"""One module per framework: what to wrap, and what each call means as a span."""
