"""Predicted step times: ideal schedules, other schedules and possible improvements."""
