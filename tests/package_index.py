"""A package index on this machine, with wheels and source archives made from texts, for the real pip."""

from __future__ import annotations

import contextlib
import io
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Index:
    """The files of an index, in the layout that pip reads: one folder with an HTML page per package."""

    def __init__(self, folder, url):
        self.folder = folder
        self.url = url

    def add_wheel(self, name, version, files):
        """Publish a wheel that contains `files`, texts by path."""
        about = f"{name}-{version}.dist-info"
        metadata = {
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": "",
        }
        with zipfile.ZipFile(self._package(name) / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            for path, text in {**files, **metadata}.items():
                wheel.writestr(path, text)
        self._write_page(name)

    def _package(self, name):
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _write_page(self, name):
        folder = self._package(name)
        links = [f'<a href="{path.name}">{path.name}</a>' for path in sorted(folder.iterdir())]
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")


def write_source_archive(path, name, version, files):
    """Write a source archive whose files are in a folder named after the release."""
    with tarfile.open(path, "w:gz") as archive:
        for inner, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{inner}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def pip_settings(url):
    """Return the environment variables with which pip asks only the index at `url`."""
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": url,
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_NO_CACHE_DIR": "1",
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


@contextlib.contextmanager
def serve(folder):
    """Serve a folder on the loopback interface, and yield its `Index`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Index(folder, f"http://127.0.0.1:{server.server_port}/")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass
