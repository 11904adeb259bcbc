"""The names of files on this machine that are copies of files elsewhere, such as s3://bucket/recordings/rank0.sscope.

Messages and tables name the original, which is what a user knows; the copy is in a cache directory. Names are those of
this process, because copies may be read long after they were made, by tables that are loaded on first use.
"""

from __future__ import annotations

_NAME_OF: dict[str, str] = {}


def name_place(place: str, name: str) -> None:
    """State what a file or directory of this machine is a copy of."""
    _NAME_OF[place] = name


def has_named_places() -> bool:
    """Return whether this process uses copies of files from elsewhere."""
    return bool(_NAME_OF)


def named_places() -> dict[str, str]:
    """Return the names of all copies by their places."""
    return dict(_NAME_OF)


def with_names(text: str) -> str:
    """Return a text with the names of originals instead of the places of their copies."""
    for place, name in _NAME_OF.items():
        text = text.replace(place, name)
    return text


def place_of(name: str) -> str:
    """Return the place of the copy of an original, or `name` itself if it is none."""
    for place, original in _NAME_OF.items():
        if name == original or name.startswith(f"{original}/"):
            return place + name[len(original) :]
    return name
