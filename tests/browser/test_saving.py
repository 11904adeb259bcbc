"""Saved pictures show what is in view: as vectors, pixels and a PDF document, which other programs render."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET
import zlib

import pypdfium2 as pdfium
import pytest

from pictures import difference_fraction
from synthetic import Shape, pipeline_timeline

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"
ALLOWED_FRACTION = 0.02
ALLOWED_PDF_FRACTION = 0.06
"""The font of a document is Helvetica, that of the page another one."""
LAYERS = "ideal=under&with=arrows.critical.idle.clocks.comm"


def save(shown, name, folder):
    with shown.page.expect_download() as started:
        shown.page.get_by_role("button", name=f"Save the picture as {name}").click()
    path = folder / f"picture.{name.lower()}"
    started.value.save_as(path)
    assert started.value.suggested_filename.endswith(f".{name.lower()}")
    return path


def texts(path):
    return [element.text for element in ET.parse(path).iter(f"{SVG}text")]


@pytest.mark.parametrize("hash_", ["", LAYERS], ids=["plain", "layers"])
def test_vectors_and_pixels_show_the_same(hash_, open_page, run_page, tmp_path):
    shown = open_page(run_page, hash_)
    svg, png = (save(shown, name, tmp_path) for name in ("SVG", "PNG"))
    assert shown.page.locator(".toast").inner_text().startswith("Saved ")
    root = ET.parse(svg).getroot()
    width, height = (int(float(root.get(side))) for side in ("width", "height"))
    other = shown.page.context.browser.new_page(
        viewport={"width": width, "height": height}, device_scale_factor=2
    )
    other.goto(svg.as_uri())
    fraction = difference_fraction(shown.page, png.read_bytes(), other.screenshot())
    other.close()
    assert fraction < ALLOWED_FRACTION, f"{fraction:.2%} of the pixels differ"


def test_a_pdf_document_shows_the_same(open_page, run_page, tmp_path):
    shown = open_page(run_page, LAYERS)
    png, pdf = (save(shown, name, tmp_path) for name in ("PNG", "PDF"))
    document = pdfium.PdfDocument(pdf)
    assert len(document) == 1
    assert document.get_metadata_value("Title") == shown.of("meta.document_title") or shown.of("meta.title")
    fraction = difference_fraction(shown.page, png.read_bytes(), rendered(document[0]))
    assert fraction < ALLOWED_PDF_FRACTION, f"{fraction:.2%} of the pixels differ"
    words = document[0].get_textpage().get_text_range()
    assert all(word in words for word in ("rank 0", "rank 3", "stage 2", "forward", "idle, waiting for:"))


def test_names_in_any_script_are_saved(open_page, run_page, tmp_path):
    shown = open_page(run_page)
    title = "流水线 <训练> & 'x'"
    shown.page.evaluate("(text) => void (window.stagescopeViewer.meta.document_title = text)", title)
    svg, pdf = (save(shown, name, tmp_path) for name in ("SVG", "PDF"))
    assert title in texts(svg)
    document = pdfium.PdfDocument(pdf)
    assert document.get_metadata_value("Title") == title
    top = document[0].render(scale=2).to_numpy()[:80]
    assert (top < 100).any(), "the title is missing"


def test_what_is_hidden_is_not_saved(open_page, run_page, tmp_path):
    shown = open_page(run_page, "with=idle&hide=1")
    before = texts(save(shown, "SVG", tmp_path))
    assert "rank 0" in before
    shown.page.evaluate("() => window.stagescopeViewer.display.hide(0)")
    shown.page.get_by_role("button", name="forward", exact=True).click()
    shown.settle()
    after = texts(save(shown, "SVG", tmp_path))
    assert "rank 0" not in after
    assert "forward" in before
    assert "forward" not in after


def rendered(page):
    """Return a page of a PDF document as a PNG, with two pixels per pixel of the viewer."""
    colors = page.render(scale=8 / 3).to_numpy()[:, :, 2::-1]
    height, width, _ = colors.shape
    rows = b"".join(b"\0" + row.tobytes() for row in colors)

    def chunk(kind, content):
        checksum = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + checksum

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


COLOR = """async ([digits, right, bottom]) => {
    const bytes = Uint8Array.from(atob(digits), (sign) => sign.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
    const pen = new OffscreenCanvas(image.width, image.height).getContext('2d');
    pen.drawImage(image, 0, 0);
    return [...pen.getImageData(image.width - right, image.height - bottom, 1, 1).data];
}"""


def test_rows_that_do_not_fit_end_above_the_legend(open_page, make_page, tmp_path):
    page = make_page("many", pipeline_timeline(Shape(ranks=96, microbatches=4, steps=1)))
    shown = open_page(page)
    png = save(shown, "PNG", tmp_path)
    digits = base64.b64encode(png.read_bytes()).decode()
    for bottom in range(10, 90, 4):
        assert shown.page.evaluate(COLOR, [digits, 60, bottom]) == [255, 255, 255, 255]
