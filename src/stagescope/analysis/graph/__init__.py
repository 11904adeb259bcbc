"""What every action depended on: dependencies, replays, the critical path and slack."""
