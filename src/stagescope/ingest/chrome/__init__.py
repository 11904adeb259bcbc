"""Chrome-format traces whose span names a pattern describes."""
