"""The recorded graph as a picture: `graph` collects it, `layout` places its nodes in layers, `svg` is the result."""

from .graph import draw
from .svg import Svg

__all__ = ["Svg", "draw"]
