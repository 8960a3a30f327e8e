r"""One order of additions, whoever makes them: gradients are summed along a binary tree over leaf numbers.

A batch is cut into micro-batches ("pieces"), and contiguous groups of pieces are the leaves of the tree, at most 16.
How many there are follows from model and batch alone. Inside a leaf, gradients accumulate in place, piece by piece. A
worker (thread, process or rank) owns a contiguous range of leaves, and adds up what it can: the nodes of the tree that
lie within its range. Then the nodes of all workers are added, in the same tree. So the sum has the same bits for any
number of workers. (A GPU is one worker, and its batch one leaf, unless there are ranks.)

    leaves   0   1   2   3   4          worker A: 0 1    ->  node (0 1)
              \ /     \ /    |          worker B: 2 3 4  ->  nodes (2 3), 4
              (01)    (23)   |
                 \    /      |          then (0 1) += (2 3),  (0 1 2 3) += 4
                 (0123)      |
                      \     /
                        sum
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

MAX_LEAVES = 16
LARGE = 1 << 24  # parameters; above, partial sums are large and there are half as many leaves


class Node(NamedTuple):
    """The sum of the leaves first … first + 2^level - 1."""

    level: int
    first: int
    buffer: Any  # where it is: a number within `fold`, then (worker, number)

    def joins(self, left: Node) -> bool:
        """True if this is the right sibling of `left`."""
        return left.level == self.level and left.first % (2 << left.level) == 0


def leaf_count(pieces: int, parameters: int) -> int:
    """How many leaves a batch has: the most workers or ranks that can share it."""
    return min(pieces, MAX_LEAVES if parameters < LARGE else MAX_LEAVES // 2)


def even_ranges(count: int, among: int) -> list[range]:
    """The numbers 0 to count - 1 in contiguous ranges that differ in length by one at most."""
    return [range(count * i // among, count * (i + 1) // among) for i in range(among)]


def fold(
    leaves: range,
    compute: Callable[[int, int, bool], None],
    add: Callable[[int, int], None],
    is_single: Callable[[int], bool],
) -> list[Node]:
    """Sum a range of leaves, as far as the tree allows; return the nodes that are left, from left to right.

    compute(leaf, buffer, accumulate)  puts a leaf's sum into a buffer, or adds it to what is there
    add(into, buffer)                  adds one buffer to another
    is_single(leaf)                    True for a leaf of one piece, which can be added to its sibling straight away

    Buffers are numbered from 0; `buffers_needed(leaves)` of them suffice.
    """
    nodes: list[Node] = []
    for leaf in leaves:
        new = Node(0, leaf, None)
        if nodes and new.joins(nodes[-1]) and is_single(leaf):
            compute(leaf, nodes[-1].buffer, True)
            nodes[-1] = nodes[-1]._replace(level=1)
        else:
            used = {node.buffer for node in nodes}
            buffer = next(i for i in range(len(nodes) + 1) if i not in used)
            compute(leaf, buffer, False)
            nodes.append(new._replace(buffer=buffer))
        while len(nodes) > 1 and nodes[-1].joins(nodes[-2]):
            right = nodes.pop()
            add(nodes[-1].buffer, right.buffer)
            nodes[-1] = nodes[-1]._replace(level=right.level + 1)
    return nodes


def buffers_needed(leaves: range) -> int:
    """Number of buffers that `fold` uses for these leaves, at most: fewer if leaves are single pieces."""
    used = [0]
    fold(leaves, lambda leaf, buffer, _: used.append(buffer + 1), lambda into, buffer: None, lambda leaf: False)
    return max(used)


def most_buffers(leaves: int, workers: int) -> int:
    """Number of buffers that one of several workers may need, for any number of leaves up to this one."""
    counts = range(1, leaves + 1)
    return max(buffers_needed(own) for count in counts for own in even_ranges(count, min(workers, count)))


def additions(nodes: Iterable[Node], to_the_end: bool = True) -> tuple[list[tuple[Any, Any]], list[Node]]:
    """Pairs (into, buffer) to add, in this order, and the nodes that are left, from left to right.

    to_the_end  until the first node's buffer holds the sum of all; False: siblings only, because others have the rest
    """
    pairs: list[tuple[Any, Any]] = []
    left: list[Node] = []

    def add_last() -> None:
        right = left.pop()
        pairs.append((left[-1].buffer, right.buffer))
        left[-1] = left[-1]._replace(level=right.level + 1)

    for node in nodes:
        left.append(node)
        while len(left) > 1 and left[-1].joins(left[-2]):
            add_last()
    while to_the_end and len(left) > 1:
        add_last()
    return pairs, left


def cover(leaves: range) -> list[Node]:
    """The nodes that a worker with these leaves is left with. Their buffers are numbered from left to right."""
    _, nodes = additions([Node(0, leaf, None) for leaf in leaves], to_the_end=False)
    return [node._replace(buffer=number) for number, node in enumerate(nodes)]
