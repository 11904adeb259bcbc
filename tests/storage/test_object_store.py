"""What libraries of object stores raise becomes a sentence that does not quote them."""

from __future__ import annotations

import pytest

from stagescope.storage.addresses import Address
from stagescope.storage.object_store import _error

SIGNED = "https://host/x?sig=secret"


def raised_by(library_error, scheme="s3"):
    error = _error(library_error, Address(scheme, "bucket", "x"), f"{scheme}://bucket/x")
    assert "secret" not in f"{error}{error.hint}"
    return str(error)


def named(name, *bases, **attributes):
    return type(name, bases or (Exception,), attributes)(SIGNED)


@pytest.mark.parametrize(
    ("error", "scheme", "sentence"),
    [
        (named("NoCredentialsError"), "s3", "no usable credentials were found"),
        (named("DefaultCredentialsError"), "gs", "no usable credentials were found"),
        (ValueError(SIGNED), "az", "no usable credentials were found"),
        (ValueError(SIGNED), "s3", "cannot be read: value error"),
        (PermissionError(SIGNED), "s3", "access was denied"),
        (named("HttpError", code=403), "gs", "access was denied"),
        (FileNotFoundError(SIGNED), "az", "no such object, prefix or bucket"),
        (named("FileExpired", OSError), "s3", "changed while it was fetched"),
        (OSError(5, SIGNED), "s3", "cannot be read: Input/output error"),
        (named("EndpointConnectionError"), "s3", "cannot be read: endpoint connection error"),
    ],
)
def test_each_kind_of_failure_has_its_sentence(error, scheme, sentence):
    assert sentence in raised_by(error, scheme)
