"""How many KV pages an attention worker can hold, decided after its weights are loaded."""

from __future__ import annotations

import psutil

from afd._megamoe import KvCache
from afd.boundary.experts import weight_type
from afd.config import Dtype, WorkerConfig
from afd.errors import ConfigError

_ELEMENT_BYTES = {Dtype.BFLOAT16: 2, Dtype.FLOAT32: 4}


def kv_token_bytes(config: WorkerConfig) -> int:
    """KV bytes of one token over all layers."""
    model = config.model
    return 2 * model.layers * model.kv_width * _ELEMENT_BYTES[config.dtype]


def kv_pages(config: WorkerConfig, available_bytes: int) -> int:
    """Pages to allocate, given this machine's free memory; attention ranks share it equally.

    Without ``kv_tokens``: what ``mem_fraction`` of the share holds, but no more than every running
    request at full context needs. Raises ConfigError if the wish, or one request, does not fit.
    """
    page_bytes = kv_token_bytes(config) * config.page_size
    share_bytes = int(available_bytes * config.mem_fraction) // config.topology.attention_ranks
    fitting = share_bytes // page_bytes
    pages_per_request = -(-config.context_length // config.page_size)
    if config.kv_tokens is None:
        pages = min(fitting, config.max_running_requests * pages_per_request)
        wish = "one page"
    else:
        pages = -(-config.kv_tokens // config.page_size)
        wish = f"{config.kv_tokens} tokens (--kv-tokens)"
    if pages < 1 or pages > fitting:
        raise ConfigError(
            f"the KV cache does not fit: {wish} needs {max(pages, 1) * page_bytes / 2**20:.1f} MiB "
            f"and {share_bytes / 2**20:.1f} MiB are free for this rank; lower --kv-tokens or free "
            "memory"
        )
    return pages


def allocate_kv(config: WorkerConfig) -> tuple[KvCache, int]:
    """The cache and its number of pages; raises ConfigError as ``kv_pages`` does."""
    pages = kv_pages(config, psutil.virtual_memory().available)
    model = config.model
    cache = KvCache(
        model.layers,
        pages,
        config.page_size,
        model.kv_heads,
        model.head_dim,
        weight_type(config.dtype),
    )
    return cache, pages
