import gzip
import random

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

from stagescope.exporters.protobuf import bytes_field, number_field, varint
from stagescope.ingest.protobuf_fields import (
    BLOCK_BYTES,
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    DamagedFieldError,
    as_double,
    as_float,
    as_signed,
    message_fields,
    stream_fields,
)
from stagescope.ingest.streams import open_stream
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import limits_in_force


def fields_of_file(path, data):
    path.write_bytes(data)
    with open_stream(path) as stream:
        return list(stream_fields(stream))


def test_reads_what_the_reference_library_writes():
    event = pb2.TrackEvent(track_uuid=2**64 - 1, double_counter_value=0.1, flow_ids=[7, 2**63])
    event.debug_annotations.add(name="step", int_value=-(2**63))

    fields = list(message_fields(event.SerializeToString()))

    assert fields[0] == (4, LENGTH, event.debug_annotations[0].SerializeToString())
    assert fields[1] == (11, VARINT, 2**64 - 1)
    assert [as_double(value) for number, _, value in fields if number == 44] == [0.1]
    assert [value for number, kind, value in fields if number == 47 and kind == FIXED64] == [7, 2**63]
    annotation = {number: value for number, _, value in message_fields(fields[0][2])}
    assert annotation[10] == b"step"
    assert as_signed(annotation[4]) == -(2**63)


def test_reads_numbers_of_32_bits():
    assert list(message_fields(b"\x0d\x00\x00\xc0\x3f")) == [(1, FIXED32, 0x3FC00000)]
    assert as_float(0x3FC00000) == 1.5


def test_returns_parts_of_a_view_without_copying_them():
    data = memoryview(bytes_field(536_870_911, b"text"))
    ((number, _, value),) = message_fields(data)
    assert (number, bytes(value)) == (536_870_911, b"text")
    assert value.obj is data.obj


@pytest.mark.parametrize(
    ("data", "reason", "is_truncated"),
    [
        (b"\x80", "the data end within a field", True),
        (b"\x08", "the data end within a field", True),
        (b"\x08\xff\xff", "the data end within a field", True),
        (b"\x0a\x05abcd", "the data end within a field", True),
        (b"\x09\x00\x00\x00", "the data end within a field", True),
        (b"\x0a" + varint(2**20), "the data end within a field", True),
        (b"\x08" + b"\xff" * 10, "a number has more than 64 bits", False),
        (b"\x00\x01", "no field has the number 0", False),
        (varint(2**29 << 3) + b"\x01", "no field has the number 536870912", False),
        (b"\x0b\x01\x0c", "no field has the wire type 3", False),
        (b"\x0f", "no field has the wire type 7", False),
    ],
)
def test_states_what_is_damaged_and_where(tmp_path, data, reason, is_truncated):
    before = number_field(1, 300)
    for read in (
        lambda: list(message_fields(before + data)),
        lambda: fields_of_file(tmp_path / "f", before + data),
    ):
        with pytest.raises(DamagedFieldError) as caught:
            read()
        assert (caught.value.reason, caught.value.offset, caught.value.is_truncated) == (
            reason, len(before), is_truncated
        )  # fmt: skip


def test_returns_the_fields_before_the_damage(tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(number_field(1, 1) + number_field(2, 2) + b"\x0a\x05abcd")
    with open_stream(path) as stream:
        fields = stream_fields(stream)
        assert [next(fields), next(fields)] == [(1, VARINT, 1), (2, VARINT, 2)]
        with pytest.raises(DamagedFieldError):
            next(fields)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reads_a_file_of_several_blocks_as_one_message(tmp_path, pack):
    texts = [
        bytes([65 + index]) * size
        for index, size in enumerate([3, BLOCK_BYTES - 9, 5 * BLOCK_BYTES + 1, 0, 7])
    ]
    data = b"".join(bytes_field(1, text) + number_field(2, len(text)) for text in texts)
    found = fields_of_file(tmp_path / "trace", pack(data))
    assert found == list(message_fields(data))
    assert [value for number, _, value in found if number == 1] == texts


def test_refuses_a_field_beyond_the_limit_without_reading_it(tmp_path):
    with (
        pytest.raises(InputError, match="the size of one value, event or line"),
        limits_in_force({"string": 1000}),
    ):
        fields_of_file(tmp_path / "trace", number_field(2, 1) + b"\x0a" + varint(2**40) + b"abc")


def test_agrees_with_the_reference_library_on_random_messages():
    choose = random.Random(20)  # noqa: S311 - not for secrets
    for _ in range(50):
        file = FileDescriptorProto(name="x" * choose.randrange(300))
        for index in range(choose.randrange(20)):
            message = file.message_type.add(name=f"message {index}")
            message.field.add(
                name="f", number=choose.choice([1, -1, 2**31 - 1]), type=FieldDescriptorProto.TYPE_BOOL
            )
        rebuilt = FileDescriptorProto()
        parts = [
            number_field(number, value) if kind == VARINT else bytes_field(number, bytes(value))
            for number, kind, value in message_fields(memoryview(file.SerializeToString()))
        ]
        rebuilt.ParseFromString(b"".join(parts))
        assert rebuilt == file
