"""Reader of other tools' Chrome traces, with action names described by a pattern."""
