"""One module per export format, each with the Writer that it offers; export/__init__.py lists them."""
