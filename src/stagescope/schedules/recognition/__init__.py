"""Recognition of the schedule of a measured order."""
