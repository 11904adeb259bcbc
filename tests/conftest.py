"""What holds for every test."""

from hypothesis import settings

# A deadline is a timing: on a busy machine it fails by chance.
settings.register_profile("stagescope", deadline=None)
settings.load_profile("stagescope")
