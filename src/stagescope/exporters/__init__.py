"""Writers: from a Timeline to a file for other tools, with one module or folder per export format."""

from stagescope.exporters.writer import Writer, Written

__all__ = ["Writer", "Written"]
