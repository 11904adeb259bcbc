"""What a step could take instead: ideal schedules, other schedules and possible improvements."""
