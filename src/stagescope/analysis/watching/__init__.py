"""What changes while a training runs: values of each step, level shifts in them, and alarms."""
