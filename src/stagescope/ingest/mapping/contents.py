"""What is in a trace of another tool: counted event by event, in bounded memory, whatever the trace has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_DISTINCT = 10_000
"""How many different names, threads or categories are counted apart; all others are counted together."""

MOST_KEYS = 500
MOST_KEYS_OF_NAME = 50
MOST_EXAMPLES = 3
LONGEST_TEXT = 200
LONGEST_EXAMPLE = 40

Key = TypeVar("Key")


class Counts(Generic[Key]):
    """The numbers of different keys, bounded: the first MOST_DISTINCT of them; `others` counts the rest."""

    def __init__(self) -> None:
        """Begin with none."""
        self.of: Counter[Key] = Counter()
        self.others = 0

    def add(self, key: Key) -> bool:
        """Count a key; return whether it is counted apart."""
        if key in self.of or len(self.of) < MOST_DISTINCT:
            self.of[key] += 1
            return True
        self.others += 1
        return False


@dataclass
class ArgumentFacts:
    """One key of arguments: how many events have it, examples, and whether all values are whole numbers."""

    count: int = 0
    examples: list[str] = field(default_factory=list)
    is_integer: bool = True

    def add(self, value: object) -> None:
        """Count one value."""
        self.count += 1
        text = printable(str(value)[:LONGEST_EXAMPLE])
        if len(self.examples) < MOST_EXAMPLES and text not in self.examples:
            self.examples.append(text)
        if isinstance(value, str):
            value = value.strip().removeprefix("-")
            self.is_integer = self.is_integer and value.isascii() and value.isdigit()
        else:
            self.is_integer = self.is_integer and isinstance(value, int) and not isinstance(value, bool)


@dataclass
class TraceContents:
    """The contents of one trace; times are in microseconds, as in the trace, None without any."""

    source: str
    events: int = 0
    phases: Counts[str] = field(default_factory=Counts)
    names: Counts[str] = field(default_factory=Counts)
    categories: Counts[str] = field(default_factory=Counts)
    processes: Counts[str] = field(default_factory=Counts)
    threads: Counts[tuple[str, str]] = field(default_factory=Counts)
    process_names: dict[str, str] = field(default_factory=dict)
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    arguments: dict[str, ArgumentFacts] = field(default_factory=dict)
    keys_of_name: dict[str, set[str]] = field(default_factory=dict)
    other_keys: int = 0
    first_us: float | None = None
    last_us: float | None = None
    is_own_export: bool = False
    """Whether stagescope wrote the trace, so that its reader needs no mapping."""

    def add_slice(
        self, name: str, category: str, where: tuple[str, str], arguments: Mapping[str, Any]
    ) -> None:
        """Count an event that is not metadata."""
        name = name[:LONGEST_TEXT]
        is_apart = self.names.add(name)
        if category:
            self.categories.add(category[:LONGEST_TEXT])
        self.processes.add(where[0][:LONGEST_TEXT])
        self.threads.add((where[0][:LONGEST_TEXT], where[1][:LONGEST_TEXT]))
        for key, value in arguments.items():
            self._add_argument(name if is_apart else None, key[:LONGEST_TEXT], value)

    def add_time(self, start_us: float, end_us: float) -> None:
        """Extend the time that the trace covers; not a number is ignored."""
        if start_us == start_us and (self.first_us is None or start_us < self.first_us):  # noqa: PLR0124 - not NaN
            self.first_us = start_us
        if end_us == end_us and (self.last_us is None or end_us > self.last_us):  # noqa: PLR0124 - not NaN
            self.last_us = end_us

    def name_process(self, process: str, name: str) -> None:
        """Note the name of a process."""
        if len(self.process_names) < MOST_DISTINCT:
            self.process_names[process[:LONGEST_TEXT]] = name[:LONGEST_TEXT]

    def name_thread(self, where: tuple[str, str], name: str) -> None:
        """Note the name of a thread."""
        if len(self.thread_names) < MOST_DISTINCT:
            self.thread_names[where[0][:LONGEST_TEXT], where[1][:LONGEST_TEXT]] = name[:LONGEST_TEXT]

    def _add_argument(self, name: str | None, key: str, value: object) -> None:
        facts = self.arguments.get(key)
        if facts is None:
            if len(self.arguments) >= MOST_KEYS:
                self.other_keys += 1
                return
            facts = self.arguments[key] = ArgumentFacts()
        facts.add(value)
        if name is not None:
            keys = self.keys_of_name.setdefault(name, set())
            if len(keys) < MOST_KEYS_OF_NAME:
                keys.add(key)
