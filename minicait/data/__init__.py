"""What images show: the names of the classes."""

from .imagenet import imagenet_classes

__all__ = ["imagenet_classes"]
