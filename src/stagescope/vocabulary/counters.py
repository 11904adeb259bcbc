"""The counters that the recorder writes: what was read at a moment, such as the memory of a device."""

from __future__ import annotations


class Counter:
    """One counter: its name in recordings and exports, its unit, and whether it belongs to the rank's device.

    Neither a named tuple nor a dataclass, because these are made by `eval` or `exec`. The recorder may import this
    module while the interpreter ends, where either would change the exit status of a KeyboardInterrupt.
    """

    __slots__ = ("meaning", "name", "of_device", "unit")

    def __init__(self, name: str, unit: str, of_device: bool, meaning: str) -> None:  # noqa: FBT001  # a row of a table
        self.name = name
        self.unit = unit
        self.of_device = of_device
        self.meaning = meaning


ALLOCATED, RESERVED = "allocated memory", "reserved memory"
PEAK_ALLOCATED = "peak allocated memory"
RESIDENT, PEAK_RESIDENT = "resident memory", "peak resident memory"
TOKENS, SAMPLES = "tokens", "samples"
LONGEST_SEQUENCE = "longest sequence"
CPU_FREQUENCY = "CPU frequency"
CPU_QUOTA_WAIT = "CPU quota wait"
CPU_THROTTLES = "CPU thermal throttles"
GPU_CLOCK, GPU_POWER, GPU_TEMPERATURE = "GPU clock", "GPU power", "GPU temperature"
GPU_SLOWDOWNS = "GPU slowdown reasons"

COUNTERS: tuple[Counter, ...] = (
    Counter(ALLOCATED, "B", True, "Memory of the device in tensors, as counted by the framework's allocator."),
    Counter(RESERVED, "B", True, "Memory of the device that the framework's allocator holds."),
    Counter(PEAK_ALLOCATED, "B", True, "Highest allocated memory since the start, or since the training reset it."),
    Counter(RESIDENT, "B", False, "Memory of the process in RAM."),
    Counter(PEAK_RESIDENT, "B", False, "Highest resident memory since the process started."),
    Counter(TOKENS, "tokens", False, "Tokens of one micro-batch; of the whole step without a micro-batch."),
    Counter(SAMPLES, "samples", False, "Samples of one micro-batch; of the whole step without a micro-batch."),
    Counter(LONGEST_SEQUENCE, "tokens", False, "Longest of the sequences packed into one micro-batch."),
    Counter(CPU_FREQUENCY, "MHz", False, "Frequency of the CPU on which the main thread ran last."),
    Counter(CPU_QUOTA_WAIT, "ns", False, "Total time for which the CPU quota of its control group was used up."),
    Counter(CPU_THROTTLES, "", False, "How often the CPU packages were throttled by their temperature, since boot."),
    Counter(GPU_CLOCK, "MHz", True, "Clock of the streaming multiprocessors."),
    Counter(GPU_POWER, "W", True, "Power of the board."),
    Counter(GPU_TEMPERATURE, "degC", True, "Temperature of the die."),
    Counter(GPU_SLOWDOWNS, "bits", True, "Why the clock is below its maximum: the bits of NVML's clock event reasons."),
)  # fmt: skip

COUNTER_OF_NAME: dict[str, Counter] = {counter.name: counter for counter in COUNTERS}
