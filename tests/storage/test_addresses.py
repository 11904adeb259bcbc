"""Addresses of object stores: recognized among paths, refused with secrets, and shown without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagescope.storage.addresses import Address, address_of, is_address, redacted
from stagescope.vocabulary.errors import InputError


@pytest.mark.parametrize("path", ["recordings", "/data/s3", "./s3:", "C://runs", Path("a:b/c"), "s3:bucket"])
def test_paths_of_this_machine_are_no_addresses(path):
    assert not is_address(path)
    assert address_of(path) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("s3://bucket/runs/7", Address("s3", "bucket", "runs/7")),
        ("S3://bucket/runs/7/", Address("s3", "bucket", "runs/7")),
        ("gs://bucket", Address("gs", "bucket", "")),
        ("az://container/a b#1@2", Address("az", "container", "a b#1@2")),
        (Path("s3://bucket/runs/7"), Address("s3", "bucket", "runs/7")),
    ],
)
def test_addresses_have_a_scheme_a_bucket_and_a_key(text, address):
    assert address_of(text) == address


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://user:word@bucket/runs", "s3://***@bucket/runs"),
        ("s3://bucket/runs?X-Amz-Signature=word", "s3://bucket/runs?***"),
        ("https://user:word@host/runs?sig=word#word", "https://***@host/runs?***"),
        (Path("https://user:word@host/runs"), "https://***@host/runs"),
    ],
)
def test_secrets_in_addresses_are_refused_and_not_shown(text, shown):
    assert redacted(str(text)) == shown
    with pytest.raises(InputError) as raised:
        address_of(text)
    assert shown in str(raised.value)
    assert "word@" not in str(raised.value)
    assert "=word" not in str(raised.value)


@pytest.mark.parametrize("text", ["https://host/runs", "hdfs://host/runs", "s3:///runs", "s3://b/runs"])
def test_what_cannot_be_read_is_named_with_what_can(text):
    with pytest.raises(InputError, match="s3://"):
        address_of(text)
