"""Imports go one way: ``afd`` -> ``afd_sched``, ``afd`` -> extension; see the rooms below.

Run as a program; prints every import that points the wrong way and exits 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Room -> prefixes that it must not import. A model file knows no transport, a port knows no model's
# layers, and the scheduler knows neither tensors nor the engine.
FORBIDDEN = {
    "python/afd_sched": ("afd.", "torch", "transformers"),
    "afd/models": ("afd.worker", "afd.launch", "afd.boundary", "afd.llm", "zmq", "torch"),
    "afd/attention": ("afd.worker", "afd.launch", "afd.boundary", "afd.llm", "zmq", "torch"),
    "afd/boundary": ("afd.worker", "afd.launch", "afd.llm", "zmq", "torch", "afd.models.decoder"),
    "afd/worker": ("afd.launch", "afd.llm", "torch", "transformers"),
    "afd/simulate": ("torch", "transformers", "afd.models", "afd.boundary", "afd._megamoe"),
    "afd/tools": ("afd.worker", "afd.launch", "afd.llm", "afd.boundary"),
    "afd/qfirst": ("afd.worker", "afd.launch", "afd.llm", "afd.boundary", "afd.plan"),
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def wrong_ways(root: Path = ROOT) -> list[str]:
    """One line per import that points the wrong way."""
    found = []
    for room, prefixes in FORBIDDEN.items():
        for path in sorted((root / room).rglob("*.py")):
            for line, module in imports(path):
                if any(
                    f"{module}.".startswith(p if p.endswith(".") else f"{p}.") for p in prefixes
                ):
                    found.append(f"{path.relative_to(root)}:{line} imports {module}")
    return found


if __name__ == "__main__":
    lines = wrong_ways()
    print("\n".join(lines) or "imports go one way")
    sys.exit(1 if lines else 0)
