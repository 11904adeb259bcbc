"""Turn the body of a request into a message, within limits."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import msgspec

from stagescope.ingest.otlp.messages import DECODER, ENCODER, Request
from stagescope.ingest.otlp.protobuf import request_of
from stagescope.ingest.protobuf_fields import DamagedFieldError

MOST_BODY_BYTES = 16 << 20
"""As much as a request of the OpenTelemetry Collector may have by default (20 MiB), roughly."""

MOST_UNPACKED_BYTES = 64 << 20
PROTOBUF, JSON = "application/x-protobuf", "application/json"
GZIP_WINDOW_BITS = 31


class RefusedError(Exception):
    """A request that is not accepted: the status to answer with, and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Received(NamedTuple):
    """A request: the line to store, without its line break, and what is in it."""

    line: bytes
    request: Request


def media_type(content_type: str) -> str:
    """Return what a Content-Type states without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def received(body: bytes, content_type: str, encoding: str) -> Received:
    """Return a request from its body. Raises RefusedError."""
    data = _unpacked(body, encoding)
    kind = media_type(content_type)
    try:
        if kind == PROTOBUF:
            request = request_of(data)
        elif kind == JSON:
            request = DECODER.decode(data)
        else:
            raise RefusedError(415, f"Content-Type must be {PROTOBUF} or {JSON}.")
        return Received(ENCODER.encode(request), request)
    except (msgspec.DecodeError, DamagedFieldError, RecursionError, UnicodeError) as reason:
        raise RefusedError(400, f"The body is no ExportTraceServiceRequest: {reason}.") from None


def _unpacked(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise RefusedError(415, "Content-Encoding must be gzip, or absent.")
    unpacker = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        data = unpacker.decompress(body, MOST_UNPACKED_BYTES)
    except zlib.error as reason:
        raise RefusedError(400, f"The body is no gzip data: {reason}.") from None
    if unpacker.unconsumed_tail:
        raise RefusedError(
            413, f"The body is larger than {MOST_UNPACKED_BYTES >> 20} MiB after decompression."
        )
    if not unpacker.eof:
        raise RefusedError(400, "The body is truncated gzip data.")
    return data


def answer(kind: str, rejected: int, sentence: str) -> bytes:
    """Return an ExportTraceServiceResponse in the format of the request, which is `kind`.

    With `rejected` spans it is a partial success.
    """
    if kind != PROTOBUF:
        partial = (
            {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": sentence}} if rejected else {}
        )
        return msgspec.json.encode(partial)
    if not rejected:
        return b""
    text = sentence.encode()
    inner = b"\x08" + _varint(rejected) + b"\x12" + _varint(len(text)) + text
    return b"\x0a" + _varint(len(inner)) + inner


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits per byte
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
