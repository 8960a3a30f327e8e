"""Where the class token looks (CaiT, Figs. 5 and D.2): the weights of class attention, drawn on the image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import autograd as ag
from autograd.kernels import softmax

from ..data.picture import denormalise
from ..models import Model
from ..nn import evaluation_mode
from ..nn.record import record
from .colours import SCALE, coloured, stretched

SIDE, GAP, CAPTION = 160, 8, 18  # of the pictures on a sheet


def has_class_attention(model: Model) -> bool:
    """True if the model has a class token whose attention can be shown."""
    with ag.no_grad(), evaluation_mode(model), record(model) as inside:
        model(np.zeros((1, 3, *model.img_size), np.float32))
    return bool(inside.class_attention)


def class_attention(model: Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(B, layers, heads, rows, columns): how much each patch gives to the class token; and the logits."""
    with ag.no_grad(), evaluation_mode(model), record(model) as inside:
        logits = model(images).numpy()
    if not inside.class_attention:
        raise ValueError(f"{type(model).__name__} has no class attention to look at")
    # the token itself is the first key; what it takes from the patches is shown
    layers = np.stack([layer[:, :, 0, 1:] for layer in inside.class_attention.values()], axis=1)
    return layers.reshape(*layers.shape[:3], *model.grid), logits


def saliency(attention: np.ndarray) -> np.ndarray:
    """(heads, rows, columns) to one map from 0 to 1: the mean over heads, stretched, as in Fig. D.2."""
    return stretched(attention.mean(axis=0))


def attention_sheet(model: Model, images: np.ndarray, labels: Sequence[int], classes: Sequence[str]) -> Image.Image:
    """A row for each image: itself, the attention of each class-attention layer, and what it was taken for."""
    attention, logits = class_attention(model, images)
    p = softmax(logits, -1)
    layers = attention.shape[1]
    width, height = (layers + 1) * (SIDE + GAP) + GAP, SIDE + CAPTION + GAP
    sheet = Image.new("RGB", (width, len(images) * height + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for i, label in enumerate(labels):
        top = GAP + i * height
        guess = int(p[i].argmax())
        verdict = "right" if guess == label else f"it is: {classes[label]}"
        draw.text((GAP, top), f"{classes[guess]} {p[i, guess]:.0%}, {verdict}", "black", font)
        image = _image(images[i])
        pictures = [image] + [over(image, saliency(attention[i, layer])) for layer in range(layers)]
        for j, picture in enumerate(pictures):
            sheet.paste(picture, (GAP + j * (SIDE + GAP), top + CAPTION))
    return sheet


def _image(pixels: np.ndarray) -> Image.Image:
    """Normalised (3, H, W) as a picture of the sheet's size."""
    values = denormalise(pixels)
    small = values.shape[0] < SIDE
    return Image.fromarray(values).resize((SIDE, SIDE), Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS)


def over(image: Image.Image, heat: np.ndarray, opacity: float = 0.6, scale: np.ndarray = SCALE) -> Image.Image:
    """The map in colours, half transparent over a grey image."""
    layer = Image.fromarray(coloured(heat, scale)).resize(image.size, Image.Resampling.BICUBIC)
    return Image.blend(image.convert("L").convert("RGB"), layer, opacity)
