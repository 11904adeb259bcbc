"""The whole iteration: the pipeline window, and everything between the windows of two steps."""
