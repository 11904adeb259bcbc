"""``stagescope`` and ``python -m stagescope``. What is imported takes longest where Ctrl-C would print a traceback."""

import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Return the exit code of a call of the process (cli/__init__.py), also if Ctrl-C comes before or after it."""
    try:
        from stagescope.cli import main as run  # noqa: PLC0415 - as above

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("stagescope: interrupted\n")
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
