"""Curves as SVG."""

import re

import pytest

from minicait.run.pictures import HEIGHT, LEFT, WIDTH, curves


def test_curves_know_their_size():
    """Or a page would stretch a single panel to its whole width."""
    panel = {"line": [(0.0, 1.0), (1.0, 2.0)]}
    assert f'width="{2 * WIDTH}" height="{HEIGHT}"' in curves({"one": panel, "two": panel})


def test_curves_fit_a_narrow_page_and_have_a_name():
    panel = {"line": [(0.0, 1.0), (1.0, 2.0)]}
    two = curves({"a < b": panel, "two": panel})
    assert 'style="max-width:100%;height:auto" role="img"' in two and "<title>a &lt; b, two</title>" in two
    assert "<title>curves</title>" in curves({"": panel})


@pytest.mark.parametrize("value", [9.76e-4, -9.76e-4, -1.234e-6, -0.01234, 12345.6, 99.96, 123.4])
def test_labels_have_room(value):
    """Text has 12 pixels; digits of the widest of the usual fonts are 7.7 of them wide."""
    svg = curves({"": {"line": [(0, value), (1, value)]}})
    label = re.findall(r'text-anchor="end">([^<]*)<', svg)[0]
    assert float(label) == pytest.approx(value, rel=0.05)
    assert 7.7 * len(label.replace(".", "").replace("-", "")) + 4.4 * (label.count("-") + 1) <= LEFT - 6


def test_next_to_nothing_is_said_as_zero():
    """Its digits would not fit beside the axis."""
    labels = re.findall(r'text-anchor="end">([^<]*)<', curves({"loss": {"line": [(0, -5.54e-5), (1, 2.3)]}}))
    assert labels == ["0", "1.15", "2.3"]
    labels = re.findall(r'text-anchor="end">([^<]*)<', curves({"rate": {"line": [(0, 1e-6), (1, 5e-6)]}}))
    assert labels == ["1e-06", "3e-06", "5e-06"]
