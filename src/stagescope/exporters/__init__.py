"""From a Timeline to a file that other tools open: one module or folder per export format."""

from stagescope.exporters.writer import Writer, Written

__all__ = ["Writer", "Written"]
