"""draw(): a graph as SVG, checked by parsing the XML and its coordinates."""

import gc
import re
import time
import weakref
from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, ops
from autograd.draw import layout
from autograd.draw.graph import MARGIN

SVG = "{http://www.w3.org/2000/svg}"


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, dtype=np.float32), requires_grad=True)


class Read:
    """A parsed picture: boxes as lists of lines, edges as (from, to), rectangles as (left, top, right, bottom)."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        groups = [g for g in self.root.iter(f"{SVG}g") if g.get("data-box")]
        self.kinds = [g.get("class") for g in groups]
        self.lines = [[text.text for text in g.iter(f"{SVG}text")] for g in groups]
        self.tips = [g.find(f"{SVG}title").text for g in groups]
        self.edges = [(int(i), int(g.get("data-box"))) for g in groups for i in g.get("data-inputs").split()]
        self.rectangles = []
        for g in groups:
            x, y, w, h = (float(g.find(f"{SVG}rect").get(key)) for key in ("x", "y", "width", "height"))
            self.rectangles.append((x + MARGIN, y + MARGIN, x + w + MARGIN, y + h + MARGIN))

    def edges_by_name(self) -> list[tuple[str, str]]:
        return sorted((self.lines[a][0], self.lines[b][0]) for a, b in self.edges)

    def path(self, name: str) -> str:
        return next((p.get("d") for p in self.root.iter(f"{SVG}path") if p.get("class") == name), "")

    def arrows(self):
        """Points along each segment: down, a curve to the next layer, and down."""
        for segment in self.path("arrows").split("M")[1:]:
            x0, start, top, *curve, end = (float(number) for number in re.findall(r"-?[\d.]+", segment))
            xs, ys = np.array([x0, *curve[0::2]]), np.array([top, *curve[1::2]])
            t = np.linspace(0, 1, 30)[:, None]
            weights = np.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
            down = [(x0, y) for y in np.linspace(start, top, 9)] + [(xs[-1], y) for y in np.linspace(ys[-1], end, 9)]
            yield [(x + MARGIN, y + MARGIN) for x, y in [*down, *zip(weights @ xs, weights @ ys, strict=True)]]


def diamond():
    x = leaf(1, 2)
    h = x * x
    return x, h, (h.exp() + ops.tanh(h)).sum()


def test_a_diamond_is_drawn_once():
    x, h, y = diamond()
    picture = Read(ag.draw(y, {"x": x, "h": h}))
    assert sorted(lines[0] for lines in picture.lines) == ["add", "exp", "h", "sum", "tanh", "x"]
    assert picture.edges_by_name() == [
        ("add", "sum"), ("exp", "add"), ("h", "exp"), ("h", "tanh"), ("tanh", "add"), ("x", "h"), ("x", "h"),
    ]  # fmt: skip
    assert picture.lines[0] == ["sum", "()"]
    assert ["h", "multiply", "(2,)"] in picture.lines and ["x", "(2,)"] in picture.lines
    assert len(re.findall("M", picture.path("heads"))) == 7, "an arrowhead for every edge"


def test_the_picture_is_accessible():
    *_, y = diamond()
    svg = y.draw()
    root = Read(svg).root
    assert svg._repr_svg_() == svg._repr_html_() == svg == ag.draw(y)
    assert root.get("role") == "img" and root.find(f"{SVG}title").text == "The graph behind a Tensor of shape ()"
    assert root.find(f"{SVG}desc").text.startswith("5 operations, 1 leaf. The data flows from the top")
    background = root.find(f"{SVG}rect")
    assert background.get("fill") == "white" and background.get("width") == root.get("width")


def test_kinds_of_boxes():
    class Weight(Tensor):
        pass

    w = Weight([[1.0, 2.0]], requires_grad=True)
    picture = Read(ops.linear(Tensor([[3.0, 4.0]]), w).draw())
    assert list(zip(picture.kinds, picture.lines, strict=True)) == [
        ("operation", ["linear", "(1, 1)"]), ("leaf", ["Weight", "(1, 2)"]), ("constant", ["constant"]),
    ]  # fmt: skip
    assert picture.edges == [(2, 0), (1, 0)], "in the order of the arguments"


def test_a_plain_tensor_is_one_box():
    assert Read(Tensor([1.0, 2.0]).draw()).lines == [["constant", "(2,)"]]
    assert Read(leaf(1, 2).draw()).lines == [["leaf", "(2,)"]]
    assert Read(leaf(1).draw(gradients=True)).lines == [["leaf", "(1,)", "|grad| 1"]]


def test_gradient_norms_are_right_and_no_grad_is_touched():
    x, h, y = diamond()
    picture = Read(y.draw({"x": x, "h": h}, gradients=True))
    shown = {lines[0]: lines[-1] for lines in picture.lines}
    assert x.grad is None
    gx, gh = ag.grad(y, [x, h], retain_graph=True)
    for name, g in (("x", gx), ("h", gh)):
        norm = np.linalg.norm(g.numpy().astype(np.float64))
        assert norm > 1 and shown[name] == f"|grad| {norm:.3g}"
    assert shown["sum"] == "|grad| 1"
    y.backward()  # the graph was kept


def test_norms_do_not_overflow_and_zero_differs_from_none():
    x = Tensor(np.ones(4, np.float16), requires_grad=True)
    assert "|grad| 600" in Read((x * 300).sum().draw({"x": x}, gradients=True)).lines[-1], "300 squared overflows"

    class Stop(ag.Function):
        forward = staticmethod(lambda ctx, x: x * 1)
        backward = staticmethod(lambda ctx, g: (None,))

    w, v = leaf(1), leaf(1)
    picture = Read((Stop.apply(w) + v * 0).sum().draw({"w": w, "v": v}, gradients=True))
    assert ["w", "(1,)", "no gradient"] in picture.lines and ["v", "(1,)", "|grad| 0"] in picture.lines


def test_names_of_any_kind():
    x, y = leaf(1), leaf(2)
    names = {'<b> & "c" ]]> \x00\x1b\n': x, "blocks.0.attn.proj_l.weight_of_heads": y}
    picture = Read((x + y).draw(names))
    assert picture.lines[1][0] == '<b> & "c" ]]>    ' and picture.lines[2][0] == "…proj_l.weight_of_heads"
    assert picture.tips[2].startswith("blocks.0.attn.proj_l.weight_of_heads: leaf, (1,) float32"), "in full on hover"
    assert Read((x + y).draw([("a", x)])).lines[1][0] == "a", "pairs, as model.named_parameters() gives them"


def test_errors():
    x = leaf(1, 2)
    y = (x * 2).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"draw: the graph behind this Tensor, made by sum, was freed by an earlier"):
        y.draw()
    with pytest.raises(TypeError, match="draw: expected a Tensor, got ndarray"):
        ag.draw(x.numpy())
    with pytest.raises(TypeError, match="draw: names must map to Tensors, got float for 'x'"):
        (x * 2).draw({"x": 1.0})
    with pytest.raises(ValueError, match=r"an output with a single value, got shape \(2,\)"):
        (x * 2).draw(gradients=True)
    with pytest.raises(RuntimeError, match="depends on nothing that requires grad"):
        Tensor(1.0).draw(gradients=True)


def random_graph(seed: int, size: int) -> Tensor:
    rng = np.random.default_rng(seed)
    made = [leaf(1) for _ in range(3)]
    for _ in range(size):
        a, b = rng.integers(max(0, len(made) - 6), len(made), 2)
        made.append(made[a] + made[b])
    return sum(made[-4:], made[0] * 2)


@pytest.mark.parametrize("seed", range(5))
def test_arrows_go_down_and_boxes_do_not_touch(seed):
    picture = Read(random_graph(seed, 40).draw())
    boxes = picture.rectangles
    assert all(boxes[a][3] < boxes[b][1] for a, b in picture.edges)
    for (l1, t1, r1, b1), (l2, t2, r2, b2) in combinations(boxes, 2):
        assert r1 < l2 or r2 < l1 or b1 < t2 or b2 < t1
    width, height = float(picture.root.get("width")), float(picture.root.get("height"))
    assert all(min(left, top) >= 0 and right <= width and bottom <= height for left, top, right, bottom in boxes)
    arrows = list(picture.arrows())
    assert len(arrows) >= len(picture.edges)
    for points in arrows:
        for x, y in points:
            assert not any(left < x < right and top < y < bottom for left, top, right, bottom in boxes)


def crossings(graph: layout.Layout) -> int:
    """Count the pairs of links between two layers whose ends are in opposite order."""
    ends = [(graph.y[a], graph.x[a], graph.x[b]) for a, b in graph.links]
    return sum(y == z and (a - c) * (b - d) < 0 for (y, a, b), (z, c, d) in combinations(ends, 2))


def test_crossings_are_removed(monkeypatch):
    """In the order of the inputs, the edge from 4 to 3 crosses two others; with 1 moved to the right, none."""
    inputs = [[1, 2, 3], [4, 5], [6], [4], [], [], []]
    assert crossings(layout.layered(inputs, [(30.0, 20.0)] * 7)) == 0
    monkeypatch.setattr(layout, "SWEEPS", 0)
    assert crossings(layout.layered(inputs, [(30.0, 20.0)] * 7)) == 2


def test_a_straight_line_stays_straight():
    x = leaf(1)
    y = x
    for _ in range(6):
        y = ops.tanh(y) * leaf(2)
    picture = Read(y.draw())
    middles = [
        (left + right) / 2
        for (left, _, right, _), kind in zip(picture.rectangles, picture.kinds, strict=True)
        if kind == "operation"
    ]
    assert len(middles) == 12 and max(middles) - min(middles) < 30


def test_deep_graphs_are_quick():
    w = y = leaf(1)
    for _ in range(5000):
        y = y * w  # all edges from w share their dummies: one line, not 5000
    start = time.perf_counter()
    picture = Read(y.draw())
    assert time.perf_counter() - start < 20
    assert len(picture.lines) == 5001 and len(picture.edges) == 10000


def test_beyond_the_limit_edges_have_no_dummies(monkeypatch):
    monkeypatch.setattr(layout, "MAX_DUMMIES", 3)
    picture = Read(random_graph(0, 20).draw())
    boxes = picture.rectangles
    assert all(boxes[a][3] < boxes[b][1] for a, b in picture.edges)
    assert len(list(picture.arrows())) == len(picture.edges)


def test_nothing_is_kept_alive():
    gc.collect()
    gc.disable()
    try:
        x, h, y = diamond()
        alive = [weakref.ref(t) for t in (x, h, y)]
        y.draw({"x": x, "h": h}, gradients=True)
        del x, h, y
        assert [ref() for ref in alive] == [None] * 3
        assert gc.collect() == 0, "the collector found garbage that reference counting should have freed"
    finally:
        gc.enable()
