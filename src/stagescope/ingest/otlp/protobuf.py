"""The messages of OTLP traces from protobuf: field numbers of trace.proto, common.proto and resource.proto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.otlp.messages import (
    AnyValue,
    KeyValue,
    Link,
    Request,
    Resource,
    ResourceSpans,
    ScopeSpans,
    Span,
)
from stagescope.ingest.protobuf_fields import (
    FIXED64,
    LENGTH,
    VARINT,
    DamagedFieldError,
    as_double,
    as_signed,
    message_fields,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

Part = bytes | memoryview


def request_of(data: Part) -> Request:
    """Return an ExportTraceServiceRequest. Raises DamagedFieldError for data that are no such message."""
    return Request([_resource_spans(part) for number, part in _parts(data) if number == 1])


def _resource_spans(data: Part) -> ResourceSpans:
    found = ResourceSpans(scope_spans=[])
    for number, part in _parts(data):
        if number == 1:
            found.resource = Resource([_key_value(one) for field, one in _parts(part) if field == 1])
        elif number == 2:  # noqa: PLR2004 - the number of a field, here and below
            found.scope_spans.append(ScopeSpans([_span(one) for field, one in _parts(part) if field == 2]))  # noqa: PLR2004
    return found


def _span(data: Part) -> Span:
    found = Span(attributes=[], links=[])
    for number, wire_type, value in message_fields(data):
        if isinstance(value, int):
            if wire_type == FIXED64 and number == 7:  # noqa: PLR2004
                found.start_time_unix_nano = str(value)
            elif wire_type == FIXED64 and number == 8:  # noqa: PLR2004
                found.end_time_unix_nano = str(value)
        elif number in (1, 2, 4):
            setattr(found, {1: "trace_id", 2: "span_id", 4: "parent_span_id"}[number], bytes(value).hex())
        elif number == 5:  # noqa: PLR2004
            found.name = _text(value)
        elif number == 9:  # noqa: PLR2004
            found.attributes.append(_key_value(value))
        elif number == 13:  # noqa: PLR2004
            ids = {field: bytes(one).hex() for field, one in _parts(value) if field in (1, 2)}
            found.links.append(Link(ids.get(1, ""), ids.get(2, "")))
    return found


def _key_value(data: Part) -> KeyValue:
    found = KeyValue()
    for number, part in _parts(data):
        if number == 1:
            found.key = _text(part)
        elif number == 2:  # noqa: PLR2004
            found.value = _any_value(part)
    return found


def _any_value(data: Part) -> AnyValue:
    found = AnyValue()
    for number, wire_type, value in message_fields(data):
        if isinstance(value, int):
            if number == 2 and wire_type == VARINT:  # noqa: PLR2004
                found.bool_value = bool(value)
            elif number == 3 and wire_type == VARINT:  # noqa: PLR2004
                found.int_value = str(as_signed(value))
            elif number == 4 and wire_type == FIXED64:  # noqa: PLR2004
                found.double_value = as_double(value)
        elif number == 1:
            found.string_value = _text(value)
    return found


def _parts(data: Part) -> Iterator[tuple[int, Part]]:
    """Yield the fields with a length."""
    for number, wire_type, value in message_fields(data):
        if wire_type == LENGTH and not isinstance(value, int):
            yield number, value


def _text(data: Part) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as reason:
        raise DamagedFieldError("text that is not UTF-8", reason.start) from None
