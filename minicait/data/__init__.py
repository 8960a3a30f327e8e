"""Data: `shapes` are drawn on the spot, `loader` makes batches, `mixing` blends them; `imagenet` has class names."""

from .imagenet import imagenet_classes
from .loader import Loader
from .mixing import mix, soft_targets
from .shapes import Shapes

__all__ = ["Loader", "Shapes", "imagenet_classes", "mix", "soft_targets"]
