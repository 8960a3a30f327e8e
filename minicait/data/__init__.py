"""Data, from a source to a batch.

source      where images come from: `shapes` are drawn on the spot, `imagenette` is downloaded, `folder` is one's own
picture     a file as an upright RGB image
transforms  crops, `randaugment` and `erasing` in training; the middle of the image in evaluation
loader      batches, prepared on threads; `mixing` blends the images of one
imagenet    the names of the classes
"""

from .folder import ImageFolder, train_and_val
from .imagenet import imagenet_classes
from .imagenette import imagenette
from .loader import InMemory, Loader
from .mixing import mix, one_hot
from .picture import BadImageError, Picture
from .shapes import Shapes
from .source import Source
from .transforms import Augmentation, evaluation, training

__all__ = [
    "Augmentation",
    "BadImageError",
    "ImageFolder",
    "InMemory",
    "Loader",
    "Picture",
    "Shapes",
    "Source",
    "evaluation",
    "imagenet_classes",
    "imagenette",
    "mix",
    "one_hot",
    "train_and_val",
    "training",
]
