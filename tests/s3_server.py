"""A local S3 server (moto), with the environment that programs need to use it, and a client to fill it."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

BUCKET = "training"
SECRET = "planted-secret-key"  # noqa: S105 - of nothing but this server


@contextmanager
def s3_server():
    """Yield the environment of a server on this machine that ends with the block."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        yield server, environment(port)
    finally:
        server.stop()


def environment(port):
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "planted-key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def client(variables):
    """Return a client with which tests write objects."""
    import boto3  # noqa: PLC0415 - with the extra `dev` alone

    return boto3.client(
        "s3",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name=variables["AWS_DEFAULT_REGION"],
    )


def upload(s3, directory, prefix, bucket=BUCKET):
    """Write all files below a directory as objects below a prefix."""
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            s3.put_object(
                Bucket=bucket,
                Key=f"{prefix}/{file.relative_to(directory).as_posix()}",
                Body=file.read_bytes(),
            )
