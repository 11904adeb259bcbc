"""``stagescope install-hook``: let processes of this Python record themselves if their environment asks for it."""

from __future__ import annotations

import sys

import click

from stagescope.cli.console import echo
from stagescope.vocabulary.errors import CommandError


@click.command(
    "install-hook",
    epilog="""
    \b
    Examples:
      stagescope install-hook
      STAGESCOPE_RECORD=/shared/recordings srun python train.py
      STAGESCOPE_RECORD=recordings mpirun -n 4 python train.py
      stagescope install-hook --remove
    """,
)
@click.option("--remove", is_flag=True, help="Remove the hook.")
def command(*, remove: bool) -> int:
    """Let processes of this Python record themselves where STAGESCOPE_RECORD states.

    Writes a .pth file among the packages of this Python. It does nothing in processes without the variable; in the
    others, it records as `stagescope run` does. One line of a script has the same effect:
    `import stagescope.record.auto`.
    """
    if sys.platform != "linux":
        raise CommandError.needs_linux("recording", sys.platform)
    from stagescope.record.startup_file import install_hook, packages_directory, remove_hook

    if not remove:
        echo(f"wrote {install_hook()}: processes with STAGESCOPE_RECORD=DIR record themselves")
        return 0
    removed = remove_hook()
    echo(f"removed {removed}" if removed else f"no hook in {packages_directory()}")
    return 0
