"""``python -m afd.launch`` is ``afd-launch``."""

from __future__ import annotations

import sys

from afd.entry import afd_launch

sys.exit(afd_launch())
