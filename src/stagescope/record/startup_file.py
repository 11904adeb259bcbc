"""A file among the packages of a Python with which each of its processes may record itself, without `stagescope run`.

Python runs the lines of .pth files that begin with ``import`` at start-up (documentation of the module `site`). The one
written here does nothing unless the environment has STAGESCOPE_RECORD; then it runs the start-up hook, which waits for
the import of a framework. A missing stagescope is reported once per process and changes nothing.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from stagescope.vocabulary.errors import OutputError

NAME = "stagescope_hook"
FILE = "stagescope-record.pth"
HOOK = Path(__file__).absolute().parent / "hook" / "sitecustomize.py"
CODE = """\
import io, sys
try:
    with io.open({path!r}, encoding='utf-8') as file:
        code = compile(file.read(), {path!r}, 'exec')
    exec(code, {{'__name__': {name!r}, '__file__': {path!r}}})
except Exception as error:
    sys.stderr.write('stagescope: cannot record this process: %r\\n' % error)
"""


def startup_line() -> str:
    """Return the line of the .pth file."""
    code = CODE.format(path=os.fspath(HOOK), name=NAME)
    return f"import os; os.environ.get('STAGESCOPE_RECORD') and exec({code!r}, {{}})\n"


def packages_directory() -> Path:
    """Return the directory with the packages of this Python."""
    return Path(sysconfig.get_path("purelib"))


def install_hook(directory: Path | None = None) -> Path:
    """Write the file into `directory`, by default that of this Python's packages, and return its path.

    An existing one is replaced. Raises OutputError if it cannot be written.
    """
    path = (directory or packages_directory()) / FILE
    try:
        path.write_text(startup_line(), encoding="utf-8")
    except OSError as reason:
        raise OutputError.cannot_write(path, reason) from None
    return path


def remove_hook(directory: Path | None = None) -> Path | None:
    """Remove the file, and return its path; None if there was none. Raises OutputError if it cannot be removed."""
    path = (directory or packages_directory()) / FILE
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as reason:
        raise OutputError.cannot_write(path, reason) from None
    return path
