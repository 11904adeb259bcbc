"""The messages of OTLP traces, with the fields that are read, and their JSON.

Source: opentelemetry-proto, opentelemetry/proto/trace/v1/trace.proto and collector/trace/v1/trace_service.proto, and
the OTLP specification ("JSON Protobuf Encoding": ids are hexadecimal, 64-bit numbers are decimal text, names are in
lowerCamelCase). A file has one ExportTraceServiceRequest per line, as the file exporter of the OpenTelemetry Collector
writes. Events, states and dropped counts are not read.
"""

from __future__ import annotations

import msgspec

Whole = int | str | None
"""A 64-bit number: text in JSON, which readers must accept as a number too."""


class AnyValue(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """The value of an attribute; arrays, maps and bytes are not read."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Whole = None
    double_value: float | str | None = None


class KeyValue(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """An attribute."""

    key: str = ""
    value: AnyValue | None = None


class Link(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """A reference to a span, maybe of another process."""

    trace_id: str = ""
    span_id: str = ""


class Span(msgspec.Struct, rename="camel", omit_defaults=True):
    """A span; times are nanoseconds since the Unix epoch."""

    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str = ""
    name: str = ""
    start_time_unix_nano: Whole = None
    end_time_unix_nano: Whole = None
    attributes: list[KeyValue] = []
    links: list[Link] = []


class Resource(msgspec.Struct, rename="camel", omit_defaults=True):
    """What all spans of a process have in common."""

    attributes: list[KeyValue] = []


class ScopeSpans(msgspec.Struct, rename="camel", omit_defaults=True):
    """The spans of one library."""

    spans: list[Span] = []


class ResourceSpans(msgspec.Struct, rename="camel", omit_defaults=True):
    """The spans of one process."""

    resource: Resource | None = None
    scope_spans: list[ScopeSpans] = []


class Request(msgspec.Struct, rename="camel"):
    """A request, and a line of a file."""

    resource_spans: list[ResourceSpans]

    @property
    def span_count(self) -> int:
        """Number of spans."""
        return sum(len(scope.spans) for part in self.resource_spans for scope in part.scope_spans)


DECODER = msgspec.json.Decoder(Request)
ENCODER = msgspec.json.Encoder()


def values_of(attributes: list[KeyValue]) -> dict[str, str | int | float | bool]:
    """Return the attributes by key; those without a readable value are left out."""
    found: dict[str, str | int | float | bool] = {}
    for attribute in attributes:
        value = attribute.value
        if value is None:
            continue
        for one in (value.string_value, whole(value.int_value), value.bool_value, value.double_value):
            if one is not None:
                found[attribute.key] = one
                break
    return found


def whole(value: Whole) -> int | None:
    """Return a 64-bit number; None if it is absent or not one.

    >>> whole("1790000000000000000"), whole("soon")
    (1790000000000000000, None)
    """
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else None
    is_number = value is not None and len(value) < 21 and value.removeprefix("-").isascii()  # noqa: PLR2004 - 2**64
    if value is None or not is_number or not value.removeprefix("-").isdigit():
        return None
    return whole(int(value))
