"""A small model of every family and form, for tests that all of them must pass."""

from minicait.models.cait import CaiT
from minicait.models.deit import DeiT
from minicait.models.deit3 import DeiT3
from minicait.models.grafit import Grafit
from minicait.models.lvvit import LVViT
from minicait.models.patchconvnet import PatchConvNet
from minicait.models.resmlp import ResMLP

SIZES = {"img_size": 16, "patch_size": 4, "dim": 12, "depth": 2, "num_classes": 10}
SMALL_MODELS = {
    "cait": lambda **c: CaiT(**SIZES | {"heads": 3, "layer_scale": 0.5} | c),
    "deit": lambda **c: DeiT(**SIZES | {"heads": 3} | c),
    "deit-distilled": lambda **c: DeiT(**SIZES | {"heads": 3, "distilled": True} | c),
    "deit3": lambda **c: DeiT3(**SIZES | {"heads": 3, "layer_scale": 0.5} | c),
    "resmlp": lambda **c: ResMLP(**SIZES | {"layer_scale": 0.5} | c),
    "resmlp-class-mlp": lambda **c: ResMLP(**SIZES | {"layer_scale": 0.5, "class_mlp": True} | c),
    "patchconvnet": lambda **c: PatchConvNet(**SIZES | {"layer_scale": 0.5} | c),
    "patchconvnet-multi": lambda **c: PatchConvNet(**SIZES | {"layer_scale": 0.5, "multi_class": True} | c),
    "lvvit": lambda **c: LVViT(**SIZES | {"heads": 3, "stem_channels": 6} | c),
}
# these train by a loss of their own
SMALL_GRAFITS = {
    "grafit": lambda **c: Grafit(**SIZES | {"trunk": "deit_mini_32", "embedding": 8} | c),
    "grafit-cait": lambda **c: Grafit(**SIZES | {"trunk": "cait_tiny_32", "embedding": 8} | c),
    "grafit-fc": lambda **c: Grafit(**SIZES | {"trunk": "deit_mini_32", "embedding": 8, "projector": "fc"} | c),
}
