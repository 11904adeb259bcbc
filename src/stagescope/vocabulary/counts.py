"""Counts with their noun."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count and its noun.

    >>> counted(1, "rank"), counted(4, "rank"), counted(0, "micro-batch", "micro-batches")
    ('1 rank', '4 ranks', '0 micro-batches')
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
