"""What to make; free of torch, so that asking for a built model stays light."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """``rows`` texts of ``length`` tokens calibrate the conversion."""

    shape: str = "qwen3_moe"
    experts: int = 16
    top_k: int = 8
    fp8: bool = False
    seed: int = 0
    rows: int = 48
    length: int = 192
