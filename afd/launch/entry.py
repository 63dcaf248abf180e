"""Where ``afd-launch`` begins: Ctrl-C ends it in order even while its modules are loading."""

from __future__ import annotations

import sys

_EXIT_INTERRUPTED = 130


def main() -> int:
    """See ``afd.launch.cli.main``."""
    try:
        from afd.launch.cli import main as launch

        return launch()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
