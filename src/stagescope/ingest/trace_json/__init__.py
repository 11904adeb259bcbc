"""Streaming access to Chrome-format JSON, for every reader of such traces."""
