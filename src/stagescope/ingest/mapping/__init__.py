"""From the slices of any trace to spans: which slices are actions, and where their identity is stated.

Readers of traces of other tools produce slices (slices.py). A mapping (mapping.py) states the kind of the slices that a
rule matches, and an expression (expressions.py) for each part of their identity; `timeline_of_slices` of timeline.py
applies it.
"""
