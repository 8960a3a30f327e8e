"""Where the boxes of a graph go: in layers, with few crossings and straight lines, after Sugiyama.

1. A box stands one layer above the highest box that it leads to, so that every arrow points down.
2. An arrow that passes layers takes a place in each of them. All arrows of one box share these places.
3. In every layer, things are sorted by the mean place of what they are connected to, down and up, several times.
4. Everything moves sideways to the mean place of its neighbours, as far as its own layer leaves room.

Nothing here knows what a box is: it has a number, a size, and the numbers of its inputs.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple

GAP, RISE, LANE = 16.0, 34.0, 10.0  # between boxes of a layer, between layers; the width of an arrow that passes
SWEEPS, MOVES = 8, 24
PLACES = 100_000  # for arrows that pass; with more of them, they are drawn straight from box to box


class Layout(NamedTuple):
    """The middle of every box, and then of every place where an arrow passes; `heights` are those of their layers.

    `links` are the pieces of arrows, (from, to), each between two layers.
    """

    x: list[float]
    y: list[float]
    heights: list[float]
    links: list[tuple[int, int]]
    width: float
    height: float


def layered(inputs: Sequence[Sequence[int]], sizes: Sequence[tuple[float, float]]) -> Layout:
    """Places for boxes of the given (width, height). Every box must come before its inputs; box 0 is the lowest."""
    graph = _Graph(inputs, [width for width, _ in sizes])
    graph.sort()
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
    """Boxes, and the places where arrows pass, by number. `above` and `below` lead to the next layer only."""

    def __init__(self, inputs: Sequence[Sequence[int]], widths: list[float]) -> None:
        self.widths = widths
        self.boxes = len(widths)
        self.layer = [0] * self.boxes
        for box, sources in enumerate(inputs):
            for source in sources:
                self.layer[source] = max(self.layer[source], self.layer[box] + 1)
        lowest = list(self.layer)  # the layer in which the last arrow of a box ends
        for box, sources in enumerate(inputs):
            for source in sources:
                lowest[source] = min(lowest[source], self.layer[box])
        passing = sum(max(0, top - low - 1) for top, low in zip(self.layer, lowest, strict=True))
        self.above: list[list[int]] = [[] for _ in range(self.boxes)]
        place = {}  # of an arrow from a box, in a layer
        for box in range(self.boxes):
            upper = box
            for layer in range(self.layer[box] - 1, lowest[box], -1) if passing <= PLACES else ():
                place[box, layer] = len(self.above)
                self.above.append([upper])
                self.layer.append(layer)
                self.widths.append(LANE)
                upper = place[box, layer]
        for box, sources in enumerate(inputs):
            self.above[box] += [place.get((source, self.layer[box] + 1), source) for source in sources]
        self.below: list[list[int]] = [[] for _ in self.above]
        for item, above in enumerate(self.above):
            for upper in above:
                self.below[upper].append(item)
        self.layers: list[list[int]] = [[] for _ in range(max(self.layer) + 1)]
        for item in self._in_order_of_inputs():
            self.layers[self.layer[item]].append(item)
        self.x = [0.0] * len(self.above)

    def _in_order_of_inputs(self) -> list[int]:
        """Depth first from the lowest box: a start in which the inputs of one box stand together, in their order."""
        seen: dict[int, None] = {}
        stack = [0]
        while stack:
            item = stack.pop()
            if item not in seen:
                seen[item] = None
                stack += reversed(self.above[item])
        return list(seen)

    # ---- the order within the layers

    def sort(self) -> None:
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
        """By the mean place of the neighbours on one side; what has none there keeps its own."""
        mean = {}
        for own, item in enumerate(layer):
            places = [self.place[other] for other in neighbours[item]]
            mean[item] = sum(places) / len(places) if places else float(own)
        layer.sort(key=mean.__getitem__)
        self.place.update({item: i for i, item in enumerate(layer)})

    def crossings(self) -> int:
        """Pairs of links between two layers whose ends are in opposite order."""
        self.place = {item: i for layer in self.layers for i, item in enumerate(layer)}
        count = 0
        for layer in self.layers:
            seen: list[int] = []
            for item in layer:
                ends = sorted(self.place[upper] for upper in self.above[item])
                count += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return count

    # ---- the place within a layer

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
        """And how much it matters to be straight above or below each: most between two places of an arrow that passes,
        and least for a box without inputs, which can stand aside."""
        pairs = []
        for other in (*self.above[item], *self.below[item]):
            passing = (item >= self.boxes) + (other >= self.boxes)
            aside = not self.above[item] or not self.above[other]
            pairs.append((other, (1.0, 2.0, 8.0)[passing] * (0.02 if aside else 1.0)))
        return pairs

    def _spread(self, layer: list[int], wanted: list[float], weights: list[float]) -> None:
        """As near as possible to where each wants to be (least squares), in order and without touching.

        With the room that each needs taken off, that is a monotone regression: neighbours that would collide become a
        group, which goes to its mean.
        """
        room, needed = 0.0, []
        for i, item in enumerate(layer):
            if i:
                room += (self.widths[layer[i - 1]] + self.widths[item]) / 2 + GAP
            needed.append(room)
        groups: list[tuple[float, float, int]] = []  # mean, weight, how many
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
