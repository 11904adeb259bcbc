"""Which action depended on which: dependencies, replays, critical paths and slack."""
