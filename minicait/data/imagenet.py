"""ImageNet's 1000 classes: their WordNet numbers and names, in the order of the published models' outputs."""

from functools import cache
from importlib.resources import files


@cache
def imagenet_classes() -> tuple[str, ...]:
    return tuple(imagenet_names().values())


@cache
def imagenet_names() -> dict[str, str]:
    """By WordNet number, as the folders of ImageNet and its subsets are called."""
    lines = files("minicait.data").joinpath("imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)
