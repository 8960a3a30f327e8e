"""Maps of class attention, drawn on the image (CaiT, Figs. 5 and D.2)."""

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
from .colours import CIVIDIS, colourise, rescale

SIDE, GAP, CAPTION = 160, 8, 18  # pixels, on a sheet


def has_class_attention(model: Model) -> bool:
    """True if the model has a class token whose attention can be shown."""
    with ag.no_grad(), evaluation_mode(model), record(model) as inside:
        model(np.zeros((1, 3, *model.img_size), np.float32))
    return bool(inside.class_attention)


def class_attention(model: Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the attention of the class token to each patch (B, layers, heads, rows, columns), and the logits."""
    with ag.no_grad(), evaluation_mode(model), record(model) as inside:
        logits = model(images).numpy()
    if not inside.class_attention:
        raise ValueError(f"{type(model).__name__} has no class attention to look at")
    # the token itself is the first key; what it takes from the patches is shown
    layers = np.stack([layer[:, :, 0, 1:] for layer in inside.class_attention.values()], axis=1)
    return layers.reshape(*layers.shape[:3], *model.grid), logits


def saliency(attention: np.ndarray) -> np.ndarray:
    """Reduce (heads, rows, columns) to one map from 0 to 1: the rescaled mean over heads, as in Fig. D.2."""
    return rescale(attention.mean(axis=0))


def attention_sheet(model: Model, images: np.ndarray, labels: Sequence[int], classes: Sequence[str]) -> Image.Image:
    """Draw a row per image: the image, the attention of each class-attention layer, and the predicted class."""
    attention, logits = class_attention(model, images)
    p = softmax(logits, -1)
    layers = attention.shape[1]
    resampling = Image.Resampling.NEAREST if images.shape[2] < SIDE else Image.Resampling.LANCZOS
    width, height = (layers + 1) * (SIDE + GAP) + GAP, SIDE + CAPTION + GAP
    sheet = Image.new("RGB", (width, len(images) * height + GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for i, label in enumerate(labels):
        top = GAP + i * height
        predicted = int(p[i].argmax())
        verdict = "correct" if predicted == label else f"true class: {classes[label]}"
        draw.text((GAP, top), f"{classes[predicted]} {p[i, predicted]:.0%}, {verdict}", "black", font)
        image = Image.fromarray(denormalise(images[i])).resize((SIDE, SIDE), resampling)
        pictures = [image] + [overlay(image, saliency(attention[i, layer])) for layer in range(layers)]
        for j, picture in enumerate(pictures):
            sheet.paste(picture, (GAP + j * (SIDE + GAP), top + CAPTION))
    return sheet


def overlay(image: Image.Image, heat: np.ndarray, colours: np.ndarray = CIVIDIS) -> Image.Image:
    """Draw a map from 0 to 1 in colours, partly transparent over the grey image."""
    layer = Image.fromarray(colourise(heat, colours)).resize(image.size, Image.Resampling.BICUBIC)
    return Image.blend(image.convert("L").convert("RGB"), layer, 0.6)
