"""HTML: the picture of one step as a page that opens offline, runs no script and fetches nothing.

Every block tells its job, stage, micro-batch and duration when the mouse rests on it. The page is one file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.export.picture import draw_picture
from stagescope.export.writer import Writer, Written

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.timeline import Timeline

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>body{{margin:1rem;overflow-x:auto}}svg{{min-width:60rem;width:100%;height:auto}}</style>
</head>
<body>
{svg}
</body>
</html>
"""


def write_html(timeline: Timeline, path: Path, step: int | None = None) -> Written:
    """Write the picture of one step, the typical one if none is named, and return what stands in it.

    Raises InputError when the step was not recorded, OSError when the file cannot be written.
    """
    picture = draw_picture(timeline, step)
    svg = picture.svg[picture.svg.index("<svg") :]  # a page takes the drawing without its XML head
    data = PAGE.format(title=picture.title, svg=svg).encode()
    path.write_bytes(data)
    return Written(path, len(data), picture.block_count, 0, picture.track_names, picture.diagnostics)


WRITER = Writer("html", ".html", "picture of one step as a page that opens offline", write_html)
