# noqa: INP001 - a script, not a package
"""Report retired words in the source, tests, documents and page: check_terms.py [PATH ...].

tools/retired_terms.toml lists the words, what to write instead, and the exceptions. Without paths, every file under
version control is checked. The exit status is 1 when a word was found or an exception is no longer needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tools" / "retired_terms.toml"
SUFFIXES = (".py", ".md", ".c", ".h", ".ts", ".tsx", ".css", ".toml", ".sh", ".mjs")
NAMES = ("Makefile", "run")
SKIPPED = ("tests/data/*", "src/stagescope/viewer/assets/*")


class Finding(NamedTuple):
    """One retired word: the file, the line, the word, and what to write instead."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r} is retired; write {self.instead}"


class Rules:
    """The list of terms and exceptions, and which exceptions were needed."""

    def __init__(self, text: str) -> None:
        """Read the list from the text of a TOML file."""
        content = tomllib.loads(text)
        self.terms: dict[str, str] = content["terms"]
        self.exceptions: list[dict[str, list[str]]] = content.get("exceptions", [])
        joined = "|".join(f"(?P<t{number}>{term})" for number, term in enumerate(self.terms))
        # An underscore and a digit end a word too: test names and columns are read like sentences.
        self._pattern = re.compile(rf"(?<![A-Za-z])(?:{joined})(?![A-Za-z])", re.IGNORECASE)
        self.used: set[tuple[int, str]] = set()

    def findings(self, path: str, text: str) -> list[Finding]:
        """Return the retired words in a file, those of its exceptions left out."""
        found = []
        terms = list(self.terms)
        for number, line in enumerate(text.splitlines(), 1):
            for match in self._pattern.finditer(line):
                term = terms[int((match.lastgroup or "t0")[1:])]
                if not self._is_allowed(path, term):
                    found.append(Finding(path, number, match[0], self.terms[term]))
        return found

    def _is_allowed(self, path: str, term: str) -> bool:
        allowed = False
        for number, exception in enumerate(self.exceptions):
            if {"*", term} & set(exception["terms"]) and any(
                fnmatch(path, glob) for glob in exception["paths"]
            ):
                self.used.add((number, term if term in exception["terms"] else "*"))
                allowed = True
        return allowed

    def unused(self) -> list[str]:
        """Return the exceptions that no checked file needed, as text."""
        return [
            f"{exception['paths']}: {term!r} is no longer needed"
            for number, exception in enumerate(self.exceptions)
            for term in exception["terms"]
            if term != "*" and (number, term) not in self.used
        ]


def checked_files(paths: list[str]) -> list[str]:
    """Return the paths to check, relative to the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [
        path
        for path in listed
        if (path.endswith(SUFFIXES) or Path(path).name in NAMES)
        and not any(fnmatch(path, glob) for glob in SKIPPED)
        and (ROOT / path).is_file()
    ]


def main(paths: list[str]) -> int:
    """Print what is found and return the exit status."""
    rules = Rules(LIST.read_text(encoding="utf-8"))
    lines = [
        str(finding)
        for path in checked_files(paths)
        for finding in rules.findings(path, (ROOT / path).read_text(encoding="utf-8"))
    ]
    if not paths:
        lines += [f"{LIST.name}: exception for {each}" for each in rules.unused()]
    print("\n".join(lines) if lines else "No retired words.")  # noqa: T201 - a script
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
