"""The language of texts for people: which one, the catalog of translations, and lines of wide characters.

English is what all parts produce: sentences in tables, JSON, saved reports and errors. Front ends translate a text
where they show it (docs/decisions/0015-english-is-the-data.md).
"""

from stagescope.vocabulary.language.choice import (
    CHINESE,
    ENGLISH,
    LANGUAGE_VARIABLE,
    LANGUAGES,
    current_language,
    html_language,
    language_of,
    speaking,
)
from stagescope.vocabulary.language.translation import Foreign, localized, localized_list, translated
from stagescope.vocabulary.language.wrapping import cell_width, filled, padded, wrapped

__all__ = [
    "CHINESE",
    "ENGLISH",
    "LANGUAGES",
    "LANGUAGE_VARIABLE",
    "Foreign",
    "cell_width",
    "current_language",
    "filled",
    "html_language",
    "language_of",
    "localized",
    "localized_list",
    "padded",
    "speaking",
    "translated",
    "wrapped",
]
