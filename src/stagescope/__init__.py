"""stagescope: see, explain and shrink the bubble of pipeline-parallel training."""

__version__ = "0.1.0"
