"""The radix prefix cache of all attention ranks: one tree over token ids, pages by rank.

A node is a run of whole pages of tokens. A rank that has their keys and values *holds* the node,
and then all of its ancestors. So one walk finds how much of a prompt every rank has. As in
SGLang's RadixCache, what running requests use is locked from its node up to the root, and what
nobody uses is evicted from the leaves up, least recently used first.

    page   [ free | a slot's own | the tree's, locked by slots | the tree's, evictable ]
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

_TOKEN_BYTES = 4
PAGE_ID_BYTES = 4


class Holding:
    """One rank's ``pages`` of a node, int32 bytes. ``locks``: slots that use it or a node below;
    ``children``: nodes right below that the rank holds too; ``used``: the step in which a use last
    ended."""

    __slots__ = ("children", "locks", "node", "pages", "queued", "used")

    def __init__(self, node: Node, pages: bytes, used: int) -> None:
        self.node = node
        self.pages = pages
        self.used = used
        self.locks = 0
        self.children = 0
        self.queued = False

    @property
    def count(self) -> int:
        """Number of pages."""
        return len(self.pages) // PAGE_ID_BYTES


class Node:
    """``key``: its tokens, little-endian int32; children by their first page's bytes."""

    __slots__ = ("children", "holdings", "key", "parent")

    def __init__(self, key: bytes, parent: Node | None) -> None:
        self.key = key
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.holdings: dict[int, Holding] = {}


class RadixCache:
    """``evictable``: pages that nobody locks, by rank; ``nodes``: how many the tree has."""

    def __init__(self, ranks: int, page_size: int) -> None:
        self._page_bytes = page_size * _TOKEN_BYTES
        self.root = Node(b"", None)
        self.evictable = [0] * ranks
        self.nodes = 0
        self._leaves: list[list[tuple[int, int, Holding]]] = [[] for _ in range(ranks)]
        self._queued = 0

    # ------------------------------------------------------------------------------- finding

    def match(self, tokens: bytes, end: int) -> list[Node]:
        """Nodes from below the root on whose keys are, end to end, the longest known prefix of
        ``tokens[:end]``, in whole pages; a node that ends elsewhere is split."""
        path: list[Node] = []
        node, at, page = self.root, 0, self._page_bytes
        while at + page <= end and (child := node.children.get(tokens[at : at + page])) is not None:
            if not tokens.startswith(child.key, at, end):
                path.append(self._split(child, self._common(child.key, tokens, at, end)))
                break
            path.append(child)
            at += len(child.key)
            node = child
        return path

    def _common(self, key: bytes, tokens: bytes, at: int, end: int) -> int:
        """Bytes of whole pages that ``key`` and ``tokens[at:end]`` share: at least a page, and not
        all of ``key``."""
        count = min(len(key), end - at) // self._page_bytes * self._page_bytes
        size = count // _TOKEN_BYTES
        differs = np.frombuffer(key, np.int32, size) != np.frombuffer(tokens, np.int32, size, at)
        first = int(differs.argmax()) if differs.any() else size
        return first * _TOKEN_BYTES // self._page_bytes * self._page_bytes

    def _split(self, node: Node, size: int) -> Node:
        """Puts the first ``size`` bytes of a node into a new one above it; returns that."""
        upper = Node(node.key[:size], node.parent)
        cut = size // self._page_bytes * PAGE_ID_BYTES
        for rank, holding in node.holdings.items():
            above = upper.holdings[rank] = Holding(upper, holding.pages[:cut], holding.used)
            above.locks, above.children = holding.locks, 1
            holding.pages = holding.pages[cut:]
        if node.parent is not None:
            node.parent.children[node.key[: self._page_bytes]] = upper
        self.nodes += 1
        node.key, node.parent = node.key[size:], upper
        upper.children[node.key[: self._page_bytes]] = node
        return upper

    # ------------------------------------------------------------------------------- using

    def lock(self, path: Sequence[Node], rank: int) -> None:
        """A slot uses a path from below the root, all of which ``rank`` holds."""
        for node in path:
            holding = node.holdings[rank]
            if holding.locks == 0:
                self.evictable[rank] -= holding.count
            holding.locks += 1

    def unlock(self, node: Node, rank: int, now: int) -> None:
        """Ends a slot's use of ``node`` and everything above it."""
        while node.parent is not None:
            holding = node.holdings[rank]
            holding.used = now
            holding.locks -= 1
            if holding.locks == 0:
                self.evictable[rank] += holding.count
                self._queue(rank, holding)
            node = node.parent

    def holds_next(self, node: Node, tokens: bytes, at: int, rank: int) -> bool:
        """Whether ``rank`` holds the page of ``tokens`` that follows ``node``."""
        child = node.children.get(tokens[at : at + self._page_bytes])
        return child is not None and rank in child.holdings

    def insert(
        self, node: Node, tokens: bytes, at: int, end: int, pages: bytes, rank: int, now: int
    ) -> tuple[Node, bytes]:
        """Takes over a slot's ``pages`` with the keys and values of ``tokens[at:end]``, whole
        pages that follow ``node``, which the slot uses. Returns the node they end in, which it
        then uses instead, and those of the pages that stay its own because the tree had their
        tokens already."""
        spare = b""
        size, start = self._page_bytes, at
        if len(node.holdings) == 1 and not node.children and node.holdings[rank].locks == 1:
            # Nobody else knows this leaf: it grows, and a request leaves one node, not two.
            holding = node.holdings[rank]
            node.key += tokens[at:end]
            holding.pages += pages
            return node, spare
        while at < end:
            first = tokens[at : at + size]
            child = node.children.get(first)
            if child is None:
                child = node.children[first] = Node(tokens[at:end], node)
                self.nodes += 1
            elif not tokens.startswith(child.key, at, end):
                child = self._split(child, self._common(child.key, tokens, at, end))
            first_id = (at - start) // size * PAGE_ID_BYTES
            run = pages[first_id : first_id + len(child.key) // size * PAGE_ID_BYTES]
            if rank in child.holdings:
                spare += run
                self.lock([child], rank)
            else:
                child.holdings[rank] = Holding(child, run, now)
                child.holdings[rank].locks = 1
                if node.parent is not None:
                    node.holdings[rank].children += 1
            node = child
            at += len(child.key)
        return node, spare

    # ------------------------------------------------------------------------------- evicting

    def _queue(self, rank: int, holding: Holding) -> None:
        if holding.locks == 0 and holding.children == 0 and not holding.queued:
            holding.queued = True
            self._queued += 1
            heappush(self._leaves[rank], (holding.used, self._queued, holding))

    def evict(self, rank: int, count: int) -> bytes:
        """Gives up at least ``count`` pages of a rank, or all that nobody locks."""
        leaves = self._leaves[rank]
        given: list[bytes] = []
        while count > 0 and leaves:
            used, _, holding = heappop(leaves)
            holding.queued = False
            if holding.used != used:
                # Used since; it stays in the queue once, with whatever was true when it entered.
                self._queue(rank, holding)
            elif holding.locks == 0 and holding.children == 0:
                given.append(holding.pages)
                count -= holding.count
                self._drop(rank, holding)
        return b"".join(given)

    def forget(self, rank: int) -> None:
        """A rank has lost all that it held, locked or not."""
        self._leaves[rank].clear()
        self.evictable[rank] = 0
        below = [self.root]
        for node in below:
            below += node.children.values()
        # Leaves first, so that a node that nobody holds has no children when it goes.
        for node in reversed(below):
            node.holdings.pop(rank, None)
            if not node.holdings and node.parent is not None:
                del node.parent.children[node.key[: self._page_bytes]]
                self.nodes -= 1

    def _drop(self, rank: int, holding: Holding) -> None:
        node = holding.node
        self.evictable[rank] -= holding.count
        del node.holdings[rank]
        parent = node.parent
        if parent is None:
            return
        if not node.holdings:
            del parent.children[node.key[: self._page_bytes]]
            self.nodes -= 1
        if parent.parent is not None:
            above = parent.holdings[rank]
            above.children -= 1
            self._queue(rank, above)
