"""What is watched while a training runs: the values of each step, level shifts in them, and alarms."""
