"""Kinds, units, errors and diagnostic codes: the terms that all other parts share.

Standard library only, because the recorder inside a training process imports it too.
"""
