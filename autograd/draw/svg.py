"""A picture as text: SVG, which notebooks and pages show as they are."""

from __future__ import annotations


class Svg(str):
    """The text of an SVG picture. Write it to a file, or let a notebook show it."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Part of the page itself, not an image beside it, so that titles show on hover and are read aloud."""
        return str(self)
