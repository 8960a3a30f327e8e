"""Maps of where a model looks, drawn on the image (CaiT, Figs. 5 and D.2; PatchConvNet, Fig. 5.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import autograd as ag
from autograd.kernels import softmax

from ..data.picture import denormalise
from ..models import Model, Outputs
from ..models.maps import image_maps, token_rows
from ..nn import evaluation_mode
from ..nn.record import Record, record
from ..train.evaluate import in_pieces
from .colours import CIVIDIS, colourise, rescale

SIDE, GAP, CAPTION = 160, 8, 18  # pixels, on a sheet
SHARE = 0.95  # of the patches that a scale covers in the blocks' self-attention, where few patches outshine all others


def recorded(model: Model, images: np.ndarray) -> tuple[Record, Outputs]:
    """A forward pass in evaluation mode."""
    with ag.no_grad(), evaluation_mode(model), record(model.body) as inside:
        return inside, model.outputs(images)


def class_attention(model: Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the attention of the class token to each patch (B, layers, heads, rows, columns), and the logits."""
    inside, outputs = recorded(model, images)
    rows = token_rows(inside, model.config)
    if not rows:
        raise ValueError(f"{type(model).__name__} has no class token whose attention could be shown")
    # the token itself is the first key; what it takes from the patches is shown
    layers = np.stack([row[:, :, 1:] for row in rows.values()], axis=1)
    return layers.reshape(*layers.shape[:3], *model.grid), outputs.logits.numpy()


def saliency(attention: np.ndarray, share: float = 1.0) -> np.ndarray:
    """Reduce (heads, rows, columns) to one map from 0 to 1: the rescaled mean over heads, as in Fig. D.2."""
    return rescale(attention.mean(axis=0), share)


class Saliency(NamedTuple):
    """Maps of where a model looks in some images, and its predictions for them."""

    maps: list[np.ndarray]  # each (B, rows, columns), from 0 to 1; those of `image_maps`, so there may be none
    probabilities: np.ndarray  # (B, C)


def saliency_maps(model: Model, images: Any, threads: int | None = None, micro_batch: int | None = None) -> Saliency:
    """Maps and predictions in evaluation mode, by micro-batches on threads, on the model's device."""

    def look(part: Any) -> tuple[list[np.ndarray], np.ndarray]:
        with record(model.body) as inside:
            outputs = model.outputs(part)
        share = 1.0 if inside.class_attention or outputs.tokens is not None else SHARE
        maps = image_maps(inside, outputs, model.config)
        scaled = [np.stack([rescale(one.reshape(model.grid), share) for one in each]) for each in maps]
        return scaled, softmax(outputs.logits.numpy(), -1)

    pieces = list(in_pieces(model, images, threads, micro_batch, look))
    maps = [np.concatenate(parts) for parts in zip(*(piece[0] for piece in pieces), strict=True)]
    return Saliency(maps, np.concatenate([piece[1] for piece in pieces]))


def attention_sheet(
    model: Model, images: np.ndarray, labels: Sequence[int], classes: Sequence[str]
) -> Image.Image | None:
    """Draw a row per image: the image, the maps of where the model looks (see `image_maps`), and the predicted class.

    None if the model has no such maps.
    """
    maps, p = saliency_maps(model, images)
    if not maps:
        return None
    resampling = Image.Resampling.NEAREST if images.shape[2] < SIDE else Image.Resampling.LANCZOS
    captions = []
    for values, label in zip(p, labels, strict=True):
        predicted = int(values.argmax())
        verdict = "correct" if predicted == label else f"true class: {classes[label]}"
        captions.append(f"{classes[predicted]} {values[predicted]:.0%}, {verdict}")
    font, height = ImageFont.load_default(13), SIDE + CAPTION + GAP
    widths = [len(maps) * (SIDE + GAP) + SIDE, *(int(font.getlength(caption)) for caption in captions)]
    sheet = Image.new("RGB", (max(widths) + 2 * GAP, len(images) * height + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for i, caption in enumerate(captions):
        top = GAP + i * height
        draw.text((GAP, top), caption, "black", font)
        image = Image.fromarray(denormalise(images[i])).resize((SIDE, SIDE), resampling)
        pictures = [image] + [overlay(image, each[i]) for each in maps]
        for j, picture in enumerate(pictures):
            sheet.paste(picture, (GAP + j * (SIDE + GAP), top + CAPTION))
    return sheet


def overlay(image: Image.Image, heat: np.ndarray, colours: np.ndarray = CIVIDIS) -> Image.Image:
    """Draw a map from 0 to 1 in colours, partly transparent over the grey image."""
    layer = Image.fromarray(colourise(heat, colours)).resize(image.size, Image.Resampling.BICUBIC)
    return Image.blend(image.convert("L").convert("RGB"), layer, 0.6)
