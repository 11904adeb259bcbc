"""PNG pictures, read back by a decoder of their own that knows the format's specification alone."""

import struct
import zlib

import numpy as np
import pytest
import resvg_py

from drawing import timeline_from_text
from stagescope.exporters.pictures import png, svg
from stagescope.exporters.pictures.drawing import draw_picture
from stagescope.exporters.pictures.figure import Figure, Size
from stagescope.exporters.pictures.png import NO_FONT, WRITER, write_png
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.language import CHINESE, speaking
from synthetic import Shape, pipeline_timeline

TIMELINE = timeline_from_text("F0 F1 . . B0 - B1 -\n. F0 F1 B0 - B1 - .")
FORWARD, BACKWARD = (0x00, 0x72, 0xB2), (0x00, 0x9E, 0x73)


def pixels_of(data):
    """Return the pixels of a PNG with 8 bits per channel as rows x columns x channels (W3C PNG, sections 5 and 9)."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (size,), kind = struct.unpack(">I", data[place : place + 4]), data[place + 4 : place + 8]
        body = data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = chunks.get(kind, b"") + body
        place += 12 + size
    width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, interlaced) == (8, 0)
    channels = {2: 3, 6: 4}[color]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + width * channels)
    return unfiltered(lines, channels).reshape(height, width, channels)


def unfiltered(lines, channels):
    done = np.zeros((len(lines), lines.shape[1] - 1), np.uint8)
    above = np.zeros(lines.shape[1] - 1, np.uint8)
    for number, (kind, line) in enumerate(zip(lines[:, 0], lines[:, 1:], strict=True)):
        above = done[number] = unfilter(kind, line.copy(), above, channels)
    return done


def unfilter(kind, line, above, channels):
    if kind == 0:
        return line
    if kind == 2:
        return line + above
    for i in range(len(line)):
        left, up = int(line[i - channels]) if i >= channels else 0, int(above[i])
        corner = int(above[i - channels]) if i >= channels else 0
        near = min((left, up, corner), key=lambda one: abs(left + up - corner - one))
        line[i] = (int(line[i]) + {1: left, 3: (left + up) // 2, 4: near}[kind]) % 256
    return line


def written(timeline, tmp_path, figure=None):
    result = write_png(timeline, tmp_path / "run.png", figure)
    data = (tmp_path / "run.png").read_bytes()
    assert result.size_bytes == len(data)
    return result, pixels_of(data)


def test_the_spans_are_where_the_svg_has_them(tmp_path):
    _, pixels = written(TIMELINE, tmp_path, Figure(size=Size(720, 320)))
    assert pixels.shape[:2] == (320, 720)
    is_forward = (pixels[:, :, :3] == FORWARD).all(axis=2)
    # Of eight slots, rank 0 is forward in the first two, rank 1 in the second and the third.
    rows = np.flatnonzero(is_forward.sum(axis=1) > 60)
    left, right = (np.flatnonzero(is_forward[row]) for row in (rows[0] + 2, rows[-1] - 2))
    slot = (right.max() - right.min()) / 2
    assert abs(right.min() - left.min() - slot) <= 2
    assert abs(right.max() - left.max() - slot) <= 2


def test_an_image_has_two_pixels_per_unit_and_the_requested_size(tmp_path):
    write_png(TIMELINE, tmp_path / "run.png")
    width, height = struct.unpack(">II", (tmp_path / "run.png").read_bytes()[16:24])
    assert f'width="{width // 2}" height="{height // 2}"' in draw_picture(TIMELINE).svg
    for size in (Size(801, 401), Size(640, 360)):
        write_png(TIMELINE, tmp_path / "run.png", Figure(size=size))
        head = (tmp_path / "run.png").read_bytes()[16:24]
        assert struct.unpack(">II", head) == size


def test_text_is_drawn(tmp_path):
    result, pixels = written(TIMELINE, tmp_path, Figure(size=Size(720, 320)))
    title = pixels[20:66, 100:, :3]
    assert (title < 100).all(axis=2).sum() > 100
    assert NO_FONT not in [row.message for row in result.diagnostics]


def test_a_picture_without_a_suitable_font_has_a_warning(tmp_path, monkeypatch):

    def render_without_fonts(svg: str) -> bytes:
        return bytes(resvg_py.svg_to_bytes(svg_string=svg, skip_system_fonts=True))

    # Naming a font that does not exist is not enough: resvg may fall back to an installed one.
    monkeypatch.setattr(png, "_render", render_without_fonts)
    result = write_png(TIMELINE, tmp_path / "run.png")
    assert [(row.severity, row.code) for row in result.diagnostics] == [("warning", "picture.no_font")]


def test_the_contents_are_counted_as_for_the_svg(tmp_path):
    timeline = pipeline_timeline(Shape(ranks=3, microbatches=2, steps=2))
    mine = WRITER.with_figure(Figure(1, (0, 2))).write(timeline, tmp_path / "run.png")
    as_svg = svg.WRITER.with_figure(Figure(1, (0, 2))).write(timeline, tmp_path / "run.svg")
    assert (
        (mine.slice_count, mine.track_names)
        == (as_svg.slice_count, as_svg.track_names)
        == (10, ("rank 0", "rank 2"))
    )
    assert mine.diagnostics == as_svg.diagnostics


def test_a_size_that_is_too_small_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="a picture of 200x200 is too small for 2 ranks"):
        write_png(TIMELINE, tmp_path / "run.png", Figure(size=Size(200, 200)))


def drawn_texts(monkeypatch, tmp_path, *, has_characters):
    """Return the SVG that a picture in Chinese was made from, and the codes of its diagnostics."""
    drawn = []
    monkeypatch.setattr(png, "_has_character", lambda _: has_characters)
    monkeypatch.setattr(png, "_render", lambda svg: drawn.append(svg) or svg.encode())
    with speaking(CHINESE):
        result = write_png(timeline_from_text("F0 B0"), tmp_path / "one.png")
    return drawn[0], [row.code for row in result.diagnostics]


def test_picture_is_chinese_if_a_font_has_the_characters(monkeypatch, tmp_path):
    svg_text, codes = drawn_texts(monkeypatch, tmp_path, has_characters=True)
    assert "前向" in svg_text
    assert "picture.english" not in codes


def test_picture_is_english_with_a_note_if_no_font_has_the_characters(monkeypatch, tmp_path):
    svg_text, codes = drawn_texts(monkeypatch, tmp_path, has_characters=False)
    assert "forward" in svg_text
    assert "前向" not in svg_text
    assert "picture.english" in codes


def test_a_character_that_no_font_has_is_recognized():
    assert png._has_character("M")
    assert not png._has_character("\U000f1234")
