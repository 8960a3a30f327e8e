"""The table of models: every name that `create_model` knows, with its sizes."""

from __future__ import annotations

import difflib
import fnmatch
from dataclasses import asdict, dataclass
from typing import Any

from .cait import CaiT


@dataclass(frozen=True)
class Preset:
    """One row of the paper's Table 3, at one resolution. Every head has 48 channels: heads = dim / 48."""

    dim: int
    depth: int
    layer_scale: float
    drop_path_rate: float
    img_size: int
    patch_size: int = 16

    @property
    def heads(self) -> int:
        """Of 48 channels each."""
        return self.dim // 48

    def config(self, num_classes: int = 1000, **changes: Any) -> dict[str, Any]:
        """The arguments of CaiT for this preset; what is None in `changes` stays as it is."""
        own = {**asdict(self), "heads": self.heads, "num_classes": num_classes}
        return own | {key: value for key, value in changes.items() if value is not None}


# name -> dim, depth, LayerScale epsilon (the official code's), drop rate of stochastic depth (Table 3), resolutions
_PAPER: dict[str, tuple[int, int, float, float, tuple[int, ...]]] = {
    "xxs24": (192, 24, 1e-5, 0.1, (224, 384)),
    "xxs36": (192, 36, 1e-5, 0.1, (224, 384)),
    "xs24": (288, 24, 1e-5, 0.1, (224, 384)),
    "xs36": (288, 36, 1e-6, 0.2, (224, 384)),
    "s24": (384, 24, 1e-5, 0.1, (224, 384)),
    "s36": (384, 36, 1e-6, 0.2, (224, 384)),
    "s48": (384, 48, 1e-6, 0.3, (224, 384)),
    "m24": (768, 24, 1e-5, 0.2, (224, 384)),
    "m36": (768, 36, 1e-6, 0.3, (224, 384)),
    "m48": (768, 48, 1e-6, 0.4, (224, 448)),
}
# ours, for small images: an eighth of the side as patch, so 64 tokens
_SMALL: dict[str, tuple[int, int, float, float, tuple[int, ...]]] = {
    "tiny": (96, 6, 0.1, 0.0, (32, 64)),
    "small": (192, 12, 0.1, 0.05, (32, 64)),
}

PRESETS: dict[str, Preset] = {
    f"cait_{name}_{size}": Preset(dim, depth, epsilon, drop, size, patch_size=size // 8 if table is _SMALL else 16)
    for table in (_PAPER, _SMALL)
    for name, (dim, depth, epsilon, drop, sizes) in table.items()
    for size in sizes
}
PUBLISHED = {
    "cait_xxs24_224", "cait_xxs24_384", "cait_xxs36_224", "cait_xxs36_384", "cait_xs24_384", "cait_s24_224",
    "cait_s24_384", "cait_s36_384", "cait_m36_384", "cait_m48_448",
}  # fmt: skip


def list_models(pattern: str = "*") -> list[str]:
    """The names that fit a pattern such as "cait_xxs*"."""
    return fnmatch.filter(PRESETS, pattern)


def preset(name: str) -> Preset:
    if name not in PRESETS:
        near = difflib.get_close_matches(str(name).lower(), PRESETS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "`minicait models` lists them."
        raise ValueError(f"unknown model {name!r}: {hint}")
    return PRESETS[name]


def create_model(
    name: str,
    num_classes: int = 1000,
    img_size: int | tuple[int, int] | None = None,
    patch_size: int | None = None,
    drop_path_rate: float | None = None,
    seed: int = 0,
) -> CaiT:
    """A model of the table with fresh weights. None means the table's own value."""
    changes = {"img_size": img_size, "patch_size": patch_size, "drop_path_rate": drop_path_rate}
    return CaiT(**preset(name).config(num_classes, **changes), seed=seed)
