"""Annotation names and step marks, shared by the readers of several tools' traces."""
