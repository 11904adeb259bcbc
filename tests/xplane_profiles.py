"""Write profiles of XLA (xplane.pb) with planted kernels in named scopes: the fields of tsl's xplane.proto."""

from __future__ import annotations

EPOCH_NS = 1_790_000_000_000_000_000
BASE_NS = 5_000_000
"""Start of the lines after the beginning of the profile."""


def varint(number):
    """Return a number as the wire format has it."""
    number %= 1 << 64
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number, value):
    """Return a field: a number, or text, bytes and messages with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


class Names:
    """Texts with numbers, as the tables of a plane."""

    def __init__(self):
        """Begin without one."""
        self.numbers = {}

    def __getitem__(self, text):
        """Return the number of a text."""
        return self.numbers.setdefault(text, len(self.numbers) + 1)

    def fields(self, number):
        """Return the table as the entries of a map."""
        entries = ((key, field(1, key) + field(2, text)) for text, key in self.numbers.items())
        return b"".join(field(number, field(1, key) + field(2, entry)) for key, entry in entries)


def device(number, kernels, *, stat="name"):
    """Return the plane of a GPU; kernels are (name, scopes, stream, start_ns, end_ns)."""
    events, stats = Names(), Names()
    lines = {}
    for name, scopes, stream, start, end in kernels:
        own = [field(4, field(1, stats["correlation_id"]) + field(3, 7))]
        if scopes:
            own.append(field(4, field(1, stats[stat]) + field(7, stats[f"jit(step)/{scopes}/dot_general"])))
        times = field(2, 1000 * start) + field(3, 1000 * (end - start))
        lines.setdefault(stream, []).append(field(4, field(1, events[name]) + times + b"".join(own)))
    found = b"".join(
        field(3, field(1, stream) + field(2, f"Stream #{stream}") + field(3, BASE_NS) + b"".join(own))
        for stream, own in lines.items()
    )
    return field(1, field(2, f"/device:GPU:{number}") + found + events.fields(4) + stats.fields(5))


def profile(*planes, host="node1", epoch_ns=EPOCH_NS):
    """Return a profile of these planes."""
    started = field(6, field(1, 1) + field(3, epoch_ns))
    environment = field(
        1,
        field(2, "Task Environment")
        + started
        + field(5, field(1, 1) + field(2, field(1, 1) + field(2, "profile_start_time"))),
    )
    return field(1, field(2, "/host:metadata")) + b"".join(planes) + environment + field(4, host)


def drawn_profile(drawn, *, repeat=1, ranks=None):
    """Return the profile of a drawn timeline: a device per rank, and two kernels per action."""
    planes = []
    length = int(drawn["end_ns"].max()) + 1000
    for rank in ranks if ranks is not None else sorted(set(drawn["rank"])):
        kernels = []
        for step in range(repeat):
            for row in drawn.filter(rank=rank).sort("start_ns").iter_rows(named=True):
                start, end = row["start_ns"] + step * length, row["end_ns"] + step * length
                letter, middle = "F" if row["kind"] == "forward" else "B", (start + end) // 2
                scopes = f"jvp({letter}{row['stage']}.{row['microbatch']})"
                kernels += [("gemm", scopes, 7, start, middle - 1), ("add", scopes, 7, middle, end)]
        planes.append(device(rank, kernels))
    return profile(*planes)
