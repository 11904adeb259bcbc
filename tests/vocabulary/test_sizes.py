from __future__ import annotations

import pytest

from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.sizes import parse_size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1000000", 1_000_000),
        ("64k", 64_000),
        ("64KiB", 65_536),
        ("512MiB", 2**29),
        ("512 mib", 2**29),
        ("2GB", 2 * 10**9),
        ("1Ti", 2**40),
        ("7b", 7),
    ],
)
def test_sizes_are_written_as_people_do(text, size_bytes):
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "1.5GB", "-1", "1 PB", "12x", "1ib", "٣", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="invalid size"):
        parse_size_bytes(text)
