"""Data: `shapes` are made on the spot, `mixing` blends batches, `imagenet` has the names of its classes."""

from .imagenet import imagenet_classes
from .mixing import mix, soft_targets
from .shapes import Shapes

__all__ = ["Shapes", "imagenet_classes", "mix", "soft_targets"]
