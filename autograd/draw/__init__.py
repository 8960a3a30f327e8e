"""The recorded graph as a picture: `graph` draws it, `layout` arranges its boxes in layers, `svg` is the result."""

from .graph import draw
from .svg import Svg

__all__ = ["Svg", "draw"]
