"""Curves as SVG."""

import re

import pytest

from minicait.run.curves import HEIGHT, LEFT, WIDTH, axis, curves, tick_label


def test_curves_know_their_size():
    """Or a page would stretch a single panel to its whole width."""
    panel = {"line": [(0.0, 1.0), (1.0, 2.0)]}
    assert f'width="{2 * WIDTH}" height="{HEIGHT}"' in curves({"one": panel, "two": panel}, "x", "yy")


def test_curves_fit_a_narrow_page_and_have_a_name():
    panel = {"line": [(0.0, 1.0), (1.0, 2.0)]}
    two = curves({"a < b": panel, "two": panel}, "x", "yy")
    assert 'style="max-width:100%;height:auto" role="img"' in two and "<title>a &lt; b, two</title>" in two
    assert "<title>curves</title>" in curves({"": panel}, "x", "y")


def test_panels_wrap_on_a_page():
    """Side by side in one picture, a phone would shrink them until they were unreadable."""
    panel = {"line": [(0.0, 1.0), (1.0, 2.0)]}
    page = curves({"one": panel, "two": panel}, "x", ["a", "b"])._repr_html_()
    assert page.count("<svg") == 2 and page.count(f'viewBox="0 0 {WIDTH} {HEIGHT}"') == 2 and "flex-wrap:wrap" in page


@pytest.mark.parametrize("value", [9.76e-4, -9.76e-4, -1.234e-6, -0.01234, 12345.6, 99.96, 123.4])
def test_labels_have_room(value):
    """Text has 12 pixels; digits of the widest of the usual fonts are 7.7 of them wide."""
    svg = curves({"": {"line": [(0, value), (1, value)]}}, "x", "y")
    label = re.findall(r'text-anchor="end">([^<]*)<', svg)[0]
    assert float(label) == pytest.approx(value, rel=0.05)
    assert 7.7 * len(label.replace(".", "").replace("-", "")) + 4.4 * (label.count("-") + 1) <= LEFT - 6


def labels(svg, anchor):
    return re.findall(f'text-anchor="{anchor}">([^<]*)<', svg)


def line(*points):
    return curves({"": {"line": points}}, "x", "y")


def test_ticks_are_round_numbers():
    svg = curves({"loss": {"line": [(1, -5.54e-5), (7, 2.3)]}}, "x", "y")
    assert labels(svg, "end") == ["-0.5", "0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]
    assert labels(svg, "middle") == ["2", "4", "6", "x", "y"]
    assert labels(line((0, 1e-6), (1, 5e-6)), "end") == [f"{n}e-06" for n in range(1, 6)]
    assert labels(line((1, 0.25), (2, 1)), "middle") == ["1", "2", "x", "y"]  # there is no epoch 1.2
    assert labels(line((3, 0.25)), "middle")[0] == "3"


@pytest.mark.parametrize("values", [(0, 1), (1, 400), (-3e-7, 2e-7), (12345.1, 12345.9), (0, 5e-324), (-1e308, 1e308)])
def test_an_axis_holds_its_values(values):
    for widen in (False, True):
        found = axis(values, 0, 100, widen=widen)
        assert 1 <= len(found.ticks) <= 8 and all(-1e-6 <= found.at(tick) <= 100 + 1e-6 for tick in found.ticks)
        assert found.low <= values[0] + 1e-9 * abs(values[0]) and all(tick_label(t, found.step) for t in found.ticks)


def test_more_lines_than_colours():
    with pytest.raises(ValueError, match="panel 'loss': at most 6 lines can be told apart, got 7"):
        curves({"loss": {f"line {i}": [(0, i)] for i in range(7)}}, "x", "y")


def test_axes_are_labelled():
    svg = curves({"one": {"a < b": [(0, 1)]}, "two": {}}, "epoch", ["loss", "top-1 in %"])
    assert labels(svg, "middle").count("epoch") == 2
    assert "rotate(-90)" in svg and ">loss<" in svg and ">top-1 in %<" in svg and ">a &lt; b<" in svg


def test_values_that_are_not_finite_are_left_out():
    svg = curves({"loss": {"line": [(1, 2.0), (2, float("nan")), (3, float("inf")), (4, 1.0)]}}, "x", "y")
    (points,) = re.findall('polyline points="([^"]*)"', svg)
    assert len(points.split()) == 2 and "nan" not in svg and "inf" not in svg


def test_a_legend_takes_as_many_rows_as_it_needs():
    names = [f"a long name {i}" for i in range(6)]
    svg = curves({"": {name: [(0, i), (1, i)] for i, name in enumerate(names)}}, "x", "y")
    starts = [(int(y), int(x)) for x, y in re.findall(r'<text x="(\d+)" y="(\d+)">a long name', svg)]
    assert starts == sorted(set(starts)) and len(starts) == 6 and len({y for y, _ in starts}) == 3
    ends = [x + 25 + 7 * len(names[0]) for _, x in starts]
    assert max(ends) <= WIDTH and all(
        end <= x for (y, _), end, (below, x) in zip(starts, ends, starts[1:], strict=False) if y == below
    )
    grid = [float(y) for y in re.findall(r'class="grid"[^>]* y1="([\d.]+)"', svg)]
    assert min(grid) > max(y for y, _ in starts)  # the panel begins below
