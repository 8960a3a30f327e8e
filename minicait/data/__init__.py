"""From images to batches.

source       the images of a run: `shapes` are drawn on the fly, `imagenette` is downloaded, `folder` holds your own
groups       coarse labels and fine ones
picture      image files of six `formats`, decoded to upright RGB
transforms   crops, `randaugment` or `three_augment`, and `erasing` for training; a centre crop for evaluation
loader       batches, prepared on threads; `mixing` applies mixup and cutmix to one
device_loader  batches on a GPU: processes write bytes into `slots`, `pixels` copies them and makes images of them
label_file   what an annotator saw in every cell of every image; `label_part` is such a file while it is made
token_labels a label for every token of a crop, cut out of a label map by `roi_align`
imagenet     ImageNet's class names
"""

from .folder import ImageFolder, train_and_val
from .groups import GROUPS, Grouped, find_groups, fine_labels
from .imagenet import imagenet_classes
from .imagenette import imagenette
from .label_file import open_label_file
from .loader import InMemory, Loader
from .mixing import mix, one_hot
from .picture import BadImageError, Picture
from .shapes import Shapes
from .source import Source
from .token_labels import LabelMaps
from .transforms import Augmentation, evaluation, training

__all__ = [
    "GROUPS", "Augmentation", "BadImageError", "Grouped", "ImageFolder", "InMemory", "LabelMaps", "Loader", "Picture",
    "Shapes", "Source", "evaluation", "find_groups", "fine_labels", "imagenet_classes", "imagenette", "mix", "one_hot",
    "open_label_file", "train_and_val", "training",
]  # fmt: skip
