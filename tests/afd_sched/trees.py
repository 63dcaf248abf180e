"""What must be true of the prefix cache at any time, worked out from the tree itself."""

from __future__ import annotations

from afd_sched.ints import unpack_int32
from afd_sched.radix import Node, RadixCache
from afd_sched.residents import Residents


def nodes_of(tree: RadixCache) -> list[Node]:
    """All nodes but the root, parents first."""
    nodes = [tree.root]
    for node in nodes:
        nodes += node.children.values()
    return nodes[1:]


def check_tree(tree: RadixCache, residents: Residents, page_size: int) -> list[set[int]]:
    """Checks links, keys, locks and counts; returns each rank's cached pages."""
    ranks = range(len(tree.evictable))
    pages: list[list[int]] = [[] for _ in ranks]
    locked = [[0] for _ in ranks]
    users: dict[tuple[int, int], int] = {}
    using = [(r.node, slot // residents.table.slots) for slot, r in residents.by_slot.items()]
    for left in residents._left:
        owners = (left.slots // residents.table.slots).tolist()
        using += [(r.node, rank) for r, rank in zip(left.residents, owners, strict=True)]
    for node, rank in using:
        while node.parent is not None:
            at = id(node), rank
            users[at] = users.get(at, 0) + 1
            node = node.parent
    nodes = nodes_of(tree)
    for node in nodes:
        assert node.parent is not None and node.holdings, "a node that nobody holds"
        assert node.parent.children[node.key[: 4 * page_size]] is node
        assert len(node.key) % (4 * page_size) == 0
        for rank, holding in node.holdings.items():
            assert holding.node is node
            assert holding.count == len(node.key) // (4 * page_size)
            assert node.parent is tree.root or rank in node.parent.holdings
            assert holding.children == sum(rank in c.holdings for c in node.children.values())
            assert holding.locks == users.get((id(node), rank), 0)
            if holding.locks:
                locked[rank].append(holding.count)
            elif not holding.children:
                assert holding.queued, "an evictable leaf is not in the queue"
            pages[rank] += unpack_int32(holding.pages).tolist()
    assert len(nodes) == tree.nodes
    for rank in ranks:
        assert len(set(pages[rank])) == len(pages[rank]), "the cache holds a page twice"
        assert tree.evictable[rank] == len(pages[rank]) - sum(locked[rank])
    return [set(some) for some in pages]
