"""What holds for every test."""

import os

from hypothesis import settings

# A deadline is a timing: on a busy machine it fails by chance.
settings.register_profile("stagescope", deadline=None)
settings.load_profile("stagescope")

# Some shells export it, and output would be laid out for their width.
os.environ.pop("COLUMNS", None)
