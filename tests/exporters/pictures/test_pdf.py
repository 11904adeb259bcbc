"""PDF pictures: vectors with embedded fonts, as wide as asked for."""

import re
import sys

import pytest

from drawing import timeline_from_text
from stagescope.exporters.pictures.figure import Figure, Look
from stagescope.exporters.pictures.pdf import WRITER, write_pdf
from stagescope.vocabulary.errors import CommandError

TIMELINE = timeline_from_text("F0 F1 . . B0 - B1 -\n. F0 F1 B0 - B1 - .")


def page_size(data):
    """Return width and height in points (ISO 32000-1, 14.11.2)."""
    return [float(side) for side in re.search(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", data).groups()]


@pytest.mark.parametrize("points", [6.0, 9.0])
def test_a_column_of_a_paper_has_its_width_whatever_the_font_size(tmp_path, points):
    path = tmp_path / "column.pdf"
    written = write_pdf(TIMELINE, path, Figure(inches=3.3, look=Look(font_points=points)))
    data = path.read_bytes()
    assert page_size(data)[0] == pytest.approx(3.3 * 72, abs=0.1)
    assert (written.slice_count, written.size_bytes) == (8, len(data))


def test_text_and_shapes_are_vectors_with_an_embedded_font(tmp_path):
    path = tmp_path / "step.pdf"
    write_pdf(TIMELINE, path)
    data = path.read_bytes()
    assert data.startswith(b"%PDF-1.")
    assert b"/FontFile" in data
    assert b"/Subtype/Image" not in data.replace(b" ", b"")


def test_a_missing_library_is_an_error_that_states_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(CommandError, match="writing a PDF needs typst") as missing:
        WRITER.write(TIMELINE, tmp_path / "step.pdf")
    assert missing.value.hint == "install it with: pip install 'stagescope[pdf]'"
