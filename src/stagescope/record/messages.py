"""Messages of the recorder on standard error, in the language of the user."""

from __future__ import annotations

import os
import sys


def in_language_of_user(message: str) -> str:
    """Return a message in the language that the environment asks for, if standard error can show it.

    Few processes ever print one, so the catalog is read only then. Never raises: the training must go on.
    """
    try:
        from stagescope.vocabulary.language import ENGLISH, language_of, translated

        language = language_of(os.environ)
        if language == ENGLISH:
            return message
        found = translated(message, language)
        found.encode(sys.stderr.encoding or "ascii")
    except Exception:  # noqa: BLE001 - a message in English is better than none
        return message
    return found
