"""Two PNG pictures compared by a browser, which can read them: no library for pictures is needed."""

from __future__ import annotations

import base64
from typing import Any

COMPARE = """async ([one, other, tolerance]) => {
    const pixels = async (digits) => {
        const bytes = Uint8Array.from(atob(digits), (sign) => sign.charCodeAt(0));
        const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }));
        const canvas = new OffscreenCanvas(image.width, image.height);
        const pen = canvas.getContext('2d', { willReadFrequently: true });
        pen.drawImage(image, 0, 0);
        return [image.width, image.height, pen.getImageData(0, 0, image.width, image.height).data];
    };
    const [width, height, first] = await pixels(one), [otherWidth, otherHeight, second] = await pixels(other);
    if (width !== otherWidth || height !== otherHeight) return 1;
    let different = 0;
    for (let i = 0; i < first.length; i += 4) {
        const far = Math.max(...[0, 1, 2].map((part) => Math.abs(first[i + part] - second[i + part])));
        if (far > tolerance) different++;
    }
    return different / (width * height);
}"""
TOLERANCE = 40
"""Of 255: versions of a browser round and smooth a little differently."""


def difference_fraction(page: Any, one: bytes, other: bytes) -> float:
    """Return the part of the pixels that differ clearly; 1 where the sizes do. `page` is any page of a browser."""
    return float(
        page.evaluate(COMPARE, [*(base64.b64encode(png).decode() for png in (one, other)), TOLERANCE])
    )
