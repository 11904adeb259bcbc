"""Addresses of object stores, such as s3://bucket/recordings: recognized, checked, and shown without secrets."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from stagescope.storage import errors

if TYPE_CHECKING:
    from collections.abc import Mapping


class Service(NamedTuple):
    """An object store: the scheme of its addresses, the library that reads it, and where it finds credentials."""

    title: str
    library: str
    credentials: str


SERVICES: Mapping[str, Service] = {
    "s3": Service("Amazon S3", "s3fs", "AWS_ACCESS_KEY_ID or AWS_PROFILE in the environment, or ~/.aws"),
    "gs": Service(
        "Google Cloud Storage",
        "gcsfs",
        "GOOGLE_APPLICATION_CREDENTIALS in the environment, or `gcloud auth application-default login`",
    ),
    "az": Service("Azure Blob Storage", "adlfs", "AZURE_STORAGE_ACCOUNT_NAME and its key in the environment"),
}
"""By scheme. Each also reads what is compatible with it, for instance MinIO and Ceph with AWS_ENDPOINT_URL."""

ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
OTHERS = ("abfs", "abfss", "file", "ftp", "gcs", "hdfs", "http", "https", "s3a", "s3n")
"""Schemes that are not read, of addresses that users may try."""
COLLAPSED = re.compile(rf"({'|'.join((*SERVICES, *OTHERS))}):[/\\](?![/\\])(.*)", re.DOTALL)
"""What pathlib makes of an address."""
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
HIDDEN = "***"


class Address(NamedTuple):
    """The address of an object, or of all objects below a prefix."""

    scheme: str
    bucket: str
    key: str

    @property
    def service(self) -> Service:
        """The object store."""
        return SERVICES[self.scheme]

    @property
    def path(self) -> str:
        """Bucket and key, as libraries name an object."""
        return f"{self.bucket}/{self.key}" if self.key else self.bucket

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address of an object store, or of something else on a network."""
    text = os.fspath(path)
    return bool(ADDRESS.match(text) or COLLAPSED.match(text))


def address_of(path: str | os.PathLike[str]) -> Address | None:
    """Return the address that a path is; None for a path of this machine.

    Raises InputError for an address with credentials, of another scheme, or without a bucket.

    >>> address_of("s3://bucket/recordings/"), address_of("recordings")
    (Address(scheme='s3', bucket='bucket', key='recordings'), None)
    """
    text = os.fspath(path)
    found = ADDRESS.fullmatch(text) or COLLAPSED.fullmatch(text)
    if found is None:
        return None
    scheme, rest = found[1].lower(), found[2]
    bucket, _, key = rest.partition("/")
    shown = redacted(text)
    if "@" in bucket or "?" in rest:
        raise errors.with_credentials(shown)
    if scheme not in SERVICES:
        raise errors.other_scheme(shown, [f"{known}://" for known in SERVICES])
    if BUCKET.fullmatch(bucket) is None:
        raise errors.no_bucket(shown)
    return Address(scheme, bucket, key.rstrip("/"))


def redacted(text: str) -> str:
    """Return an address without user, password and query, which may be secrets.

    >>> redacted("https://user:password@host/key?X-Amz-Signature=1234")
    'https://***@host/key?***'
    """
    found = ADDRESS.fullmatch(text) or COLLAPSED.fullmatch(text)
    if found is None:
        return text
    host, slash, path = found[2].partition("/")
    user, at, place = host.rpartition("@")
    shown = (HIDDEN if user or at else "") + at + place + slash + path
    shown, mark, _ = shown.partition("?")
    return f"{found[1]}://{shown}{mark}{HIDDEN if mark else ''}"
