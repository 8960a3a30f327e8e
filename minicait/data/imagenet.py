"""The names of ImageNet's 1000 classes, in the order of the published models' outputs."""

from functools import cache
from importlib.resources import files


@cache
def imagenet_classes() -> tuple[str, ...]:
    return tuple(files("minicait.data").joinpath("imagenet_classes.txt").read_text(encoding="utf-8").splitlines())
