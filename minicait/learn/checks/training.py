"""Checks of chapters 11 and 12: the training step, and training."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd import ops

from ...data.picture import normalise
from ...data.shapes import Shapes
from ..compare import kind_of, same
from ..exercise import Wrong
from ..learner import Learner

SIZES = [(8, 3), (8, 4), (5, 16), (6, 1)]  # images in a batch, and in a micro-batch

SIDE, PATCH, DIM, DEPTH, HEADS = 16, 4, 32, 2, 2
IMAGES, NEW_IMAGES, STEPS, BATCH, PEAK, SEED = 4000, 500, 800, 32, 4e-3, 0
ENOUGH = 0.85  # accuracy on new images


def step(me: Learner) -> None:
    theirs, make = me.get("training.loss_and_gradients"), me.get("tensor.Tensor")
    rng = np.random.default_rng(0)
    for batch, micro in SIZES:
        me.case = f"{batch} images, micro-batches of {micro}"
        images, targets = rng.standard_normal((batch, 6)), rng.standard_normal((batch, 3))
        arrays = {"a": rng.standard_normal((6, 3)), "b": rng.standard_normal(3), "unused": np.ones(2)}
        w = {name: make(x.copy(), requires_grad=True) for name, x in arrays.items()}
        w["a"].grad = np.full((6, 3), 100.0)  # of an earlier step
        sizes: list[int] = []

        def loss_of(w: Any, images: np.ndarray, targets: np.ndarray, sizes: list[int] = sizes) -> Any:
            sizes.append(len(images))
            apart = make(images) @ w["a"] + w["b"] - make(targets)
            return (apart * apart).sum() * (1 / len(images))

        apart = images @ arrays["a"] + arrays["b"] - targets
        wanted = {"a": 2 / batch * images.T @ apart, "b": 2 / batch * apart.sum(axis=0), "unused": np.zeros(2)}
        for call in ("", " in a second call"):
            sizes.clear()
            found = theirs(loss_of, w, images, targets, micro)
            if not isinstance(found, tuple | list) or len(found) != 2 or not isinstance(found[1], dict):
                raise Wrong("expected the loss and a dict of gradients")
            if max(sizes, default=0) > micro:
                raise Wrong(f"loss_of got {max(sizes)} images at once, allowed {micro}")
            if sum(sizes) != batch:
                raise Wrong(f"loss_of got {sum(sizes)} images in all, expected {batch}")
            same(f"the loss{call}", found[0], (apart * apart).sum() / batch)
            if missing := wanted.keys() - found[1].keys():
                raise Wrong(f"there is no gradient for {', '.join(sorted(missing))}")
            for name, want in wanted.items():
                if found[1][name] is None:
                    raise Wrong(f"the gradient of {name} is None, expected an array")
                same(f"the gradient of {name}{call}", found[1][name], want)
                same(f"the weight {name}{call}", w[name].data, arrays[name])


def shapes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = Shapes(count, SIDE, seed=seed, difficulty="easy")
    images, labels = zip(*(drawn[i] for i in range(count)), strict=True)
    return normalise(np.stack(images)), np.array(labels)


def learns(me: Learner) -> str:
    make, first, model = me.get("tensor.Tensor"), me.get("cait.initial_weights"), me.get("cait.cait")
    arrays = first(len(Shapes.classes), SIDE, PATCH, DIM, DEPTH, HEADS)
    w = {name: make(x.copy(), requires_grad=True) for name, x in arrays.items()}
    images, labels = shapes(IMAGES, 0)

    def loss_of(chosen: Any) -> float:
        logits = model(images[chosen], w, HEADS).data
        return ops.cross_entropy(logits, np.eye(logits.shape[-1], dtype=logits.dtype)[labels[chosen]]).item()

    me.case = f"{STEPS} steps of {BATCH} images, peak {PEAK:g}"
    at_first = loss_of(np.random.default_rng(SEED).integers(IMAGES, size=BATCH))
    losses = me.get("training.train")(w, HEADS, images.copy(), labels.copy(), STEPS, BATCH, PEAK, SEED)
    if not isinstance(losses, list) or len(losses) != STEPS:
        raise Wrong(f"expected a list of {STEPS} losses")
    for step, loss in enumerate(losses):
        if np.ndim(loss) or np.asarray(loss).dtype.kind not in "fi":
            raise Wrong(f"losses[{step}] is {kind_of(loss)}, expected a number")
        if not np.isfinite(loss):
            raise Wrong(f"losses[{step}] is {loss}: is the learning rate right, and is the gradient?")
    if abs(losses[0] - at_first) > 0.01:
        raise Wrong(
            f"losses[0] is wrong: yours {losses[0]:.3f}, expected {at_first:.3f}, of the first weights and images"
        )
    if all(np.array_equal(w[name].data, x) for name, x in arrays.items()):
        raise Wrong("no weight has changed: does the optimiser step, and are the new values in w?")
    new_images, new_labels = shapes(NEW_IMAGES, 1)
    accuracy = float((model(new_images, w, HEADS).data.argmax(axis=-1) == new_labels).mean())
    at_last, now = loss_of(slice(0, 1000)), float(np.mean(losses[-20:]))
    if not accuracy >= ENOUGH:
        raise Wrong(
            f"{accuracy:.1%} of {NEW_IMAGES} new images are classified correctly, expected {ENOUGH:.0%}; the loss was "
            f"{losses[0]:.2f} at first and {now:.2f} over the last 20 steps"
        )
    if abs(now - at_last) > 0.1 + 0.5 * at_last:
        raise Wrong(f"the last 20 losses are {now:.3f} on average, but the weights in w have a loss of {at_last:.3f}")
    return f"{accuracy:.1%} of {NEW_IMAGES} new images are classified correctly, {ENOUGH:.0%} were asked for"
