"""Checks of mixup and cutmix (chapter 10) and MixToken (chapter 22)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import autograd as ag
from autograd import ops

from ...data import mixing
from ...nn.mix_token import MixToken, in_box
from ..compare import Slips, same, unchanged
from ..composed import check_composed
from ..exercise import Wrong
from ..functions import EXAMPLE
from ..learner import Learner

BOXES = [(2, 6, 0, 8), (0, 4, 4, 8), (1, 3, 6, 8), (3, 3, 2, 2)]  # of images 8 x 8; the last one is empty


def mixup_and_cutmix(me: Learner) -> None:
    me.case = EXAMPLE
    zero_and_one = np.stack([np.zeros((3, 32, 32), np.float32), np.ones((3, 32, 32), np.float32)])
    _mixup(me, zero_and_one, np.eye(2, dtype=np.float32), 0.75)
    _cutmix(me, zero_and_one, np.eye(2, dtype=np.float32), (0, 8, 0, 16))
    rng = np.random.default_rng(0)
    for batch in (4, 3):
        images = rng.standard_normal((batch, 3, 8, 8)).astype(np.float32)
        targets = rng.dirichlet(np.ones(5), batch).astype(np.float32)
        for share in (0.75, 0.5, 1.0, 0.0):
            me.case = f"mixup, {batch} images, share {share:g}"
            _mixup(me, images, targets, share)
        for box in BOXES:
            me.case = f"cutmix, {batch} images, box {box}"
            _cutmix(me, images, targets, box)


def _mixup(me: Learner, images: np.ndarray, targets: np.ndarray, share: float) -> None:
    other = mixing.mixup(images, targets, 1 - share)
    slips = [("mu is the share of the first image, not of its partner", x) for x in other]
    _pair(me, "mixup", images, targets, share, mixing.mixup(images, targets, share), slips)


def _cutmix(me: Learner, images: np.ndarray, targets: np.ndarray, box: mixing.Box) -> None:
    want = mixing.cutmix(images, targets, box)
    inside = targets + targets[::-1] - want[1]
    slips = [("mu is the share outside the box", inside), ("the targets are mixed, too", targets)]
    _pair(me, "cutmix", images, targets, box, want, slips)


def _pair(
    me: Learner, name: str, images: np.ndarray, targets: np.ndarray, how: object, want: mixing.Pair, slips: Slips
) -> None:
    given = images.copy(), targets.copy()
    found = me.get(f"mixing.{name}")(*given, how)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise Wrong(f"{name} has to return the mixed images and the mixed targets")
    unchanged(name, ("images", "targets"), given, (images, targets))
    same("the batch of mixed images", found[0], want[0], close=1e-6, slips=slips)
    same("the batch of mixed targets", found[1], want[1], close=1e-6, slips=slips)


def _tokens_of(theirs: Any, targets: np.ndarray, inside: np.ndarray, w: dict[str, Any]) -> Any:
    return theirs(w["x"], targets, inside)[0]


def mix_token(me: Learner) -> None:
    theirs, rng = me.get("mixing.mix_token"), np.random.default_rng(1)
    for batch, grid, box in ((4, (4, 5), (1, 0, 3, 4)), (3, (2, 2), (0, 1, 2, 2)), (2, (3, 3), (0, 0, 0, 0))):
        me.case = f"{batch} images, {grid[0]} x {grid[1]} tokens, box from {box[:2]} to {box[2:]}"
        inside, classes = in_box(grid, box), 6
        tokens = rng.standard_normal((batch, *grid, 3))
        targets = rng.dirichlet(np.ones(classes), batch)
        layer = MixToken()
        layer.box = lambda _, box=box: box  # type: ignore[method-assign, misc]
        of_images, of_tokens = layer.labels(targets, grid, classes)
        given = targets.copy()
        found = theirs(me.get("tensor.Tensor")(tokens.copy()), given, inside.copy())
        if not isinstance(found, tuple | list) or len(found) != 3:
            raise Wrong("expected three results: tokens, targets of tokens, targets of images")
        unchanged("mix_token", ("targets",), (given,), (targets,))

        def ours(w: dict[str, ag.Tensor], inside: np.ndarray = inside) -> ag.Tensor:
            return ops.where(inside[..., None], ops.flip(w["x"], 0), w["x"])

        check_composed(me, partial(_tokens_of, theirs, given, inside), ours, {"x": tokens})
        same("the target of a token", found[1], of_tokens)
        same("the target of an image", found[2], of_images)
