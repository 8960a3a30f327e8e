"""ImageNet's 1000 classes: WordNet IDs and names, in the output order of the published models."""

from functools import cache
from importlib.resources import files


@cache
def imagenet_classes() -> tuple[str, ...]:
    """Return the 1000 names, in the output order of the published models."""
    return tuple(imagenet_names().values())


@cache
def imagenet_names() -> dict[str, str]:
    """Return the names by WordNet ID, which is what the folders of ImageNet and its subsets are called."""
    lines = files("minicait.data").joinpath("imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)
