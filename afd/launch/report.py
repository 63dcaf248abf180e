"""What a launch says about itself: the resolved configuration and who is which rank."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from afd.boundary.ownership import balanced_owners, owned_by
from afd.launch.resolve import ResolvedConfig


def _ranges(numbers: list[int]) -> str:
    """ "0-7" for a contiguous ascending list."""
    if not numbers:
        return "none"
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def topology(config: ResolvedConfig) -> dict[str, Any]:
    """The effective topology as plain data: every rank with its role, node and experts."""
    shape = config.topology
    experts = config.model.experts
    ranks: list[dict[str, Any]] = []
    for rank in range(shape.ranks):
        attention = rank < shape.attention_ranks
        if not attention:
            owners = balanced_owners(experts, shape.ffn_ranks)
            owned = owned_by(owners, rank - shape.attention_ranks)
        else:
            owned = [] if shape.ffn_ranks else list(range(experts))
        ranks.append(
            {
                "rank": rank,
                "role": shape.role(rank).value,
                "node": rank // shape.workers_per_node,
                "experts": owned,
            }
        )
    return {
        "m": shape.attention_nodes,
        "n": shape.ffn_nodes,
        "workers_per_node": shape.workers_per_node,
        "disaggregated": shape.ffn_ranks > 0,
        "ranks": ranks,
    }


def print_resolved(config: ResolvedConfig, console: Console) -> None:
    """The configuration in one paragraph and the ranks in one table."""
    model, engine = config.model, config.engine
    values: dict[str, Any] = msgspec.to_builtins(engine)
    values |= {
        "model": config.model_path,
        "dtype": config.dtype.value,
        "context_length": config.context_length,
        "attention_threads": config.attention_threads,
        "ffn_threads": config.ffn_threads,
    }
    console.print(
        f"[bold]{model.architecture}[/]  {model.layers} layers, hidden {model.hidden}, "
        f"{model.experts} experts of width {model.expert_width}, top-{model.top_k}, "
        f"{len(model.moe_layers)} MoE layers"
    )
    console.print("  ".join(f"{k}={v}" for k, v in values.items() if v is not None), style="dim")
    table = Table("rank", "role", "node", "experts", box=None, header_style="bold")
    for row in topology(config)["ranks"]:
        table.add_row(str(row["rank"]), row["role"], str(row["node"]), _ranges(row["experts"]))
    console.print(table)
