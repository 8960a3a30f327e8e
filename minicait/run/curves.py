"""Curves as SVG: panels of lines with labelled axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from autograd.draw import Svg

Lines = Mapping[str, Sequence[tuple[float, float]]]  # (x, y) points by name

WIDTH, HEIGHT, LEFT, TOP, EDGE = 420, 290, 72, 52, 16
TICKS = 5  # on an axis, about
DOTS = 40  # points of a line, up to which each has a dot
COLOURS = ("#2b6cb0", "#dd6b20", "#2f855a", "#b83280", "#6b46c1", "#718096")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 2")  # so that lines differ without their colours, too


class Curves(Svg):
    """Panels in a row, as one picture. A page shows them as several, which wrap where it is narrow."""

    panels: Sequence[str] = ()

    def _repr_html_(self) -> str:
        return f'<div style="display:flex;flex-wrap:wrap">{"".join(self.panels)}</div>'


def curves(panels: Mapping[str, Lines], x: str, y: Sequence[str], from_zero: bool = False) -> Curves:
    """Draw a panel per title, with a line through (x, y) points per name.

    x, y       labels of the axes: one for all horizontal axes, one for the vertical axis of each panel
    from_zero  vertical axes include 0
    """
    for title, lines in panels.items():
        if len(lines) > len(COLOURS):
            raise ValueError(f"panel {title!r}: at most {len(COLOURS)} lines can be told apart, got {len(lines)}")
    drawn = [
        "\n".join(_panel(title, lines, x, label, from_zero))
        for (title, lines), label in zip(panels.items(), y, strict=True)
    ]
    picture = Curves(_picture(list(panels), drawn))
    picture.panels = [_picture([title], [panel]) for title, panel in zip(panels, drawn, strict=True)]
    return picture


def _picture(titles: Sequence[str], panels: Sequence[str]) -> str:
    width, name = WIDTH * len(panels), ", ".join(filter(None, titles)) or "curves"
    places = [f'<g transform="translate({i * WIDTH} 0)">\n{panel}\n</g>' for i, panel in enumerate(panels)]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curves" width="{width}" height="{HEIGHT}" '
        f'viewBox="0 0 {width} {HEIGHT}" '
        'style="max-width:100%;height:auto" role="img" font-family="sans-serif" font-size="12" fill="#333">',
        f"<title>{escape(name)}</title>",
        '<rect class="ground" width="100%" height="100%" fill="white"/>',
        *places,
        "</svg>\n",
    ])  # fmt: skip


class Axis(NamedTuple):
    """A range of values, drawn from pixel `start` to pixel `end`."""

    low: float
    high: float
    ticks: list[float]
    step: float  # between two ticks; 0 if there is only one value
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / ((self.high - self.low) or 1)


def axis(values: Sequence[float], start: float, end: float, whole: bool = False, widen: bool = False) -> Axis:
    """Lay out an axis with about TICKS ticks at multiples of 1, 2 or 5 times a power of ten.

    whole  no ticks between whole numbers
    widen  begin and end at a tick
    """
    low, high = min(values), max(values)
    if not 1e-300 < high - low < math.inf:
        return Axis(low, high, [low], 0.0, start, end)
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = low / step, high / step
    numbers = range(math.floor(first + 1e-9), math.ceil(last - 1e-9) + 1)
    if not widen:
        numbers = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
    ticks = [n * step for n in numbers]
    return Axis(*((ticks[0], ticks[-1]) if widen else (low, high)), ticks, step, start, end)


def _panel(title: str, lines: Lines, x_label: str, y_label: str, from_zero: bool) -> Iterator[str]:
    points = [point for line in lines.values() for point in line if all(map(math.isfinite, point))] or [(0.0, 0.0)]
    xs, ys = zip(*points, strict=True)
    places = _legend_places(list(lines))
    right, bottom, top = WIDTH - EDGE, HEIGHT - 46, TOP + (places[-1][1] - places[0][1] if places else 0)
    x = axis(xs, LEFT, right, whole=all(float(value).is_integer() for value in xs))
    y = axis((*ys, 0) if from_zero else ys, bottom, top, widen=True)
    yield f'<text x="{EDGE}" y="20" font-weight="bold">{escape(title)}</text>'
    for value in y.ticks:
        at, label = y.at(value), tick_label(value, y.step)
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
    for value in x.ticks:
        at, label = x.at(value), tick_label(value, x.step)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}" stroke="#ddd"/>'
        yield f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
    middle = (top + bottom) / 2
    yield f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>'
    yield f'<text transform="translate(16 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    for i, ((name, line), (left, base)) in enumerate(zip(lines.items(), places, strict=True)):
        where = [(x.at(a), y.at(b)) for a, b in line if math.isfinite(a) and math.isfinite(b)]
        stroke = f'class="s{i}" stroke="{COLOURS[i]}" stroke-width="2" stroke-dasharray="{DASHES[i]}"'
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in where)
        yield f'<polyline points="{path}" fill="none" {stroke}/>'
        for a, b in where if len(where) <= DOTS else where[-1:]:
            yield f'<circle class="s{i}" cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{COLOURS[i]}"/>'
        if name:
            yield f'<line x1="{left}" x2="{left + 20}" y1="{base - 4}" y2="{base - 4}" {stroke}/>'
            yield f'<text x="{left + 25}" y="{base}">{escape(name)}</text>'


def _legend_places(names: Sequence[str]) -> list[tuple[int, int]]:
    """Where the entries of a legend begin, in as many rows as they need."""
    places, x, y = [], LEFT, 40
    for name in names:
        width = 40 + 7 * len(name) if name else 0
        if x > LEFT and x + width > WIDTH:
            x, y = LEFT, y + 18
        places.append((x, y))
        x += width
    return places


def tick_label(value: float, step: float) -> str:
    """Format a tick with as many digits as the step to the next has, or fewer if they would not fit beside the axis."""
    label = f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}" if 1e-4 < step < 1e5 else f"{value:.3g}"
    return label if len(label) <= 6 else f"{value:.2g}"
