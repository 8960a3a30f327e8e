"""Layered graph layout with few crossings and straight edges, after Sugiyama.

1. Layers: a box is one layer above the highest box that it feeds, so that every edge points down.
2. Dummies: an edge that spans several layers gets a dummy in each layer between. All edges from one box share them.
3. Order: in every layer, items are sorted by the mean position of their neighbours, sweeping up and down several times.
4. Coordinates: every item moves sideways to the mean of its neighbours, as far as its layer leaves room.

A box is only a number, a size, and the numbers of its inputs.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple

GAP, RISE, LANE = 16.0, 34.0, 10.0  # between boxes of a layer, between layers; width of a dummy
SWEEPS, MOVES = 8, 24
MAX_DUMMIES = 100_000  # beyond this, edges are drawn straight from box to box


class Layout(NamedTuple):
    """Centres of all boxes, then of all dummies; `heights` are those of their layers.

    `links` are the segments of edges, (from, to), each between two adjacent layers.
    """

    x: list[float]
    y: list[float]
    heights: list[float]
    links: list[tuple[int, int]]
    width: float
    height: float


def layered(inputs: Sequence[Sequence[int]], sizes: Sequence[tuple[float, float]]) -> Layout:
    """Lay out boxes of the given (width, height). Every box must come before its inputs; box 0 is the lowest."""
    graph = _Graph(inputs, [width for width, _ in sizes])
    graph.reduce_crossings()
    graph.straighten()
    y, heights, bottom = [0.0] * len(graph.x), [0.0] * len(graph.x), 0.0
    for layer in reversed(graph.layers):
        tallest = max((sizes[item][1] for item in layer if item < len(sizes)), default=0.0)
        for item in layer:
            y[item], heights[item] = bottom + tallest / 2, tallest
        bottom += tallest + RISE
    left = min(x - w / 2 for x, w in zip(graph.x, graph.widths, strict=True))
    right = max(x + w / 2 for x, w in zip(graph.x, graph.widths, strict=True))
    links = [(upper, item) for item, above in enumerate(graph.above) for upper in above]
    return Layout([x - left for x in graph.x], y, heights, links, right - left, bottom - RISE)


class _Graph:
    """Boxes and then dummies, by number. `above` and `below` hold the neighbours in the adjacent layers."""

    def __init__(self, inputs: Sequence[Sequence[int]], widths: list[float]) -> None:
        self.widths = widths
        self.boxes = len(widths)
        self.layer = [0] * self.boxes
        for box, sources in enumerate(inputs):
            for source in sources:
                self.layer[source] = max(self.layer[source], self.layer[box] + 1)
        lowest = list(self.layer)  # the layer in which the longest edge of a box ends
        for box, sources in enumerate(inputs):
            for source in sources:
                lowest[source] = min(lowest[source], self.layer[box])
        dummies = sum(max(0, top - low - 1) for top, low in zip(self.layer, lowest, strict=True))
        self.above: list[list[int]] = [[] for _ in range(self.boxes)]
        dummy = {}  # by box and layer
        for box in range(self.boxes):
            upper = box
            for layer in range(self.layer[box] - 1, lowest[box], -1) if dummies <= MAX_DUMMIES else ():
                dummy[box, layer] = len(self.above)
                self.above.append([upper])
                self.layer.append(layer)
                self.widths.append(LANE)
                upper = dummy[box, layer]
        for box, sources in enumerate(inputs):
            self.above[box] += [dummy.get((source, self.layer[box] + 1), source) for source in sources]
        self.below: list[list[int]] = [[] for _ in self.above]
        for item, above in enumerate(self.above):
            for upper in above:
                self.below[upper].append(item)
        self.layers: list[list[int]] = [[] for _ in range(max(self.layer) + 1)]
        for item in self._initial_order():
            self.layers[self.layer[item]].append(item)
        self.x = [0.0] * len(self.above)

    def _initial_order(self) -> list[int]:
        """Depth-first order from the lowest box, which keeps the inputs of one box together and in order."""
        seen: dict[int, None] = {}
        stack = [0]
        while stack:
            item = stack.pop()
            if item not in seen:
                seen[item] = None
                stack += reversed(self.above[item])
        return list(seen)

    # ---- order within the layers

    def reduce_crossings(self) -> None:
        best, fewest = [list(layer) for layer in self.layers], self.crossings()
        for sweep in range(SWEEPS):
            if not fewest:
                break
            upward = sweep % 2 == 0
            neighbours = self.below if upward else self.above
            for layer in self.layers if upward else reversed(self.layers):
                self._sort_by_neighbours(layer, neighbours)
            if (crossings := self.crossings()) < fewest:
                best, fewest = [list(layer) for layer in self.layers], crossings
        self.layers = best

    def _sort_by_neighbours(self, layer: list[int], neighbours: list[list[int]]) -> None:
        """Barycentre heuristic: sort by the mean position of the neighbours on one side; others keep their own."""
        mean = {}
        for own, item in enumerate(layer):
            positions = [self.position[other] for other in neighbours[item]]
            mean[item] = sum(positions) / len(positions) if positions else float(own)
        layer.sort(key=mean.__getitem__)
        self.position.update({item: i for i, item in enumerate(layer)})

    def crossings(self) -> int:
        """Number of pairs of links between two layers whose ends are in opposite order."""
        self.position = {item: i for layer in self.layers for i, item in enumerate(layer)}
        count = 0
        for layer in self.layers:
            seen: list[int] = []
            for item in layer:
                ends = sorted(self.position[upper] for upper in self.above[item])
                count += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return count

    # ---- coordinates within a layer

    def straighten(self) -> None:
        for layer in self.layers:
            self._spread(layer, [0.0] * len(layer), [1.0] * len(layer))
        neighbours = [self._neighbours(item) for item in range(len(self.x))]
        weights = [sum(weight for _, weight in pairs) or 1.0 for pairs in neighbours]
        for move in range(MOVES):
            for layer in self.layers if move % 2 == 0 else reversed(self.layers):
                wanted = [
                    sum([self.x[other] * weight for other, weight in neighbours[item]]) / weights[item]
                    for item in layer
                ]
                self._spread(layer, wanted, [weights[item] for item in layer])

    def _neighbours(self, item: int) -> list[tuple[int, float]]:
        """Neighbours, weighted by how much alignment with them matters: most between two dummies, and least for a box
        without inputs, which may be off to the side."""
        pairs = []
        for other in (*self.above[item], *self.below[item]):
            dummies = (item >= self.boxes) + (other >= self.boxes)
            source = not self.above[item] or not self.above[other]
            pairs.append((other, (1.0, 2.0, 8.0)[dummies] * (0.02 if source else 1.0)))
        return pairs

    def _spread(self, layer: list[int], wanted: list[float], weights: list[float]) -> None:
        """Place a layer as close as possible to the wanted coordinates (least squares), in order and without overlap.

        With the widths subtracted, this is isotonic regression: neighbours that would collide form a group at their
        weighted mean.
        """
        room, needed = 0.0, []
        for i, item in enumerate(layer):
            if i:
                room += (self.widths[layer[i - 1]] + self.widths[item]) / 2 + GAP
            needed.append(room)
        groups: list[tuple[float, float, int]] = []  # mean, weight, count
        for want, weight, offset in zip(wanted, weights, needed, strict=True):
            mean, total, count = want - offset, weight, 1
            while groups and groups[-1][0] > mean:
                other, other_total, other_count = groups.pop()
                mean = (mean * total + other * other_total) / (total + other_total)
                total, count = total + other_total, count + other_count
            groups.append((mean, total, count))
        means = [mean for mean, _, count in groups for _ in range(count)]
        for item, mean, offset in zip(layer, means, needed, strict=True):
            self.x[item] = mean + offset
