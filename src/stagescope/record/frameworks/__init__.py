"""One module per framework: which functions to wrap, and which span each call represents."""
