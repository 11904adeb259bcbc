"""Chrome-format JSON as a stream of events, for every reader of such traces."""
