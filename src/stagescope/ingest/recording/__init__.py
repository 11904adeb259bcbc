"""Recordings written by stagescope itself."""
