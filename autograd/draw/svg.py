"""SVG as a string that notebooks display."""

from __future__ import annotations


class Svg(str):
    """The text of an SVG picture. Write it to a file, or let a notebook display it."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Inline SVG, not an image, so that titles show on hover and screen readers read them."""
        return str(self)
