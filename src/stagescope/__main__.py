"""``python -m stagescope`` is ``stagescope``."""

import sys

from stagescope.cli import main

if __name__ == "__main__":
    sys.exit(main())
