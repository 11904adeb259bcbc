"""Opening the browser without exposing the token.

Every user of a machine can read the command line of a browser and could use the token first. The browser therefore
opens a file that only its user can read, which redirects to the link.
"""

from __future__ import annotations

import atexit
import html
import tempfile
import threading
import webbrowser
from pathlib import Path

LEAD = """\
<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>stagescope</title>
<a href="{link}">Open the viewer</a>
"""


def lead_file(link: str) -> Path:
    """Return a file, for its owner alone, that leads a browser to `link`; removed when the process ends."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="stagescope-", suffix=".html", encoding="utf-8", delete=False
    ) as file:
        file.write(LEAD.format(link=html.escape(link)))
    path = Path(file.name)
    atexit.register(path.unlink, missing_ok=True)
    return path


def open_browser(link: str) -> threading.Thread:
    """Return the thread that opens `link` in the user's browser; whether that works shows on the screen alone."""
    address = lead_file(link).as_uri()
    # A daemon thread: some browsers block the starting process until their window is closed.
    thread = threading.Thread(target=webbrowser.open, args=(address,), daemon=True)
    thread.start()
    return thread
