"""Curves as SVG."""

import re

from minicait.train.pictures import HEIGHT, WIDTH, curves


def test_curves_know_their_size():
    """Or a page would stretch a single panel to its whole width."""
    panel = {"line": [(0.0, 1.0), (1.0, 2.0)]}
    assert f'width="{2 * WIDTH}" height="{HEIGHT}"' in curves({"one": panel, "two": panel})


def test_next_to_nothing_is_said_as_zero():
    """Its digits would not fit beside the axis."""
    labels = re.findall(r'text-anchor="end">([^<]*)<', curves({"loss": {"line": [(0, -5.54e-5), (1, 2.3)]}}))
    assert labels == ["0", "1.15", "2.3"]
    labels = re.findall(r'text-anchor="end">([^<]*)<', curves({"rate": {"line": [(0, 1e-6), (1, 5e-6)]}}))
    assert labels == ["1e-06", "3e-06", "5e-06"]
