"""The language in which texts are shown: of the command line's option or the environment, English by default."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENGLISH, CHINESE = "en", "zh"
LANGUAGES = (ENGLISH, CHINESE)
LANGUAGE_VARIABLE = "STAGESCOPE_LANG"
VARIABLES = (LANGUAGE_VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG")
"""Variables of the environment in the order of POSIX; the first one that is not empty decides."""

_current: ContextVar[str] = ContextVar("language", default=ENGLISH)


def language_of(environment: Mapping[str, str]) -> str:
    """Return the language that an environment asks for; English if it asks for none that there is.

    >>> language_of({"LANG": "zh_CN.UTF-8"}), language_of({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}), language_of({})
    ('zh', 'en', 'en')
    """
    asked = next((environment[name] for name in VARIABLES if environment.get(name)), "")
    code = asked.lower().replace("-", "_").split(".")[0].split("_")[0]
    return code if code in LANGUAGES else ENGLISH


def current_language() -> str:
    """Return the language in which texts are shown now: English, unless this is within `speaking`."""
    return _current.get()


def html_language() -> str:
    """Return the current language as HTML states it; a page that was written in Chinese opens in Chinese."""
    return {ENGLISH: "en", CHINESE: "zh-CN"}[current_language()]


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Show texts in a language; an unknown one is English. Python callers of the API get English without it."""
    token = _current.set(language if language in LANGUAGES else ENGLISH)
    try:
        yield
    finally:
        _current.reset(token)
