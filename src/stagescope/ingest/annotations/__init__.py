"""Annotation names and step marks, read alike in the traces of several tools."""
