"""Names, kinds, errors and the recording format: what every other part agrees on.

Standard library only, because the recorder inside a training run speaks this vocabulary too.
"""
