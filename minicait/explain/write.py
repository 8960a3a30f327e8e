"""Reports on disk: the page and, on request, its pictures and numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files.atomic import atomic, write_text
from ..models import Model
from .attention import saliency
from .block_graph import block_graph
from .inside import Inside, look
from .pictures import pictures
from .report import report, rounded


def write_report(
    inside: Inside, path: Path, title: str, graph: str, png: bool = False, numbers: bool = False
) -> list[Path]:
    """Write report.html; with `png` also report-saliency-1.png etc., with `numbers` report.json. Return the paths."""
    write_text(path, report(inside, title, graph))
    written = [path]
    if png:
        for name, picture in pictures(inside):
            written.append(path.with_name(f"{path.stem}-{name}.png"))
            with atomic(written[-1]) as file:
                picture.save(file, "PNG")
        written.append(path.with_name(f"{path.stem}-block.svg"))
        write_text(written[-1], graph)
    if numbers:
        written.append(path.with_suffix(".json"))
        write_text(written[-1], json.dumps(as_numbers(inside, title), ensure_ascii=False))
    return written


def write_reports(
    model: Model, images: Sequence[np.ndarray], titles: Sequence[str], classes: Sequence[str], path: Path
) -> list[Path]:
    """Write report-1.html, report-2.html and so on, one for each image (H, W, 3) in uint8."""
    seen = [look(model, image, classes) for image in images]
    graph = block_graph(model)
    return [
        write_report(inside, numbered(path, i), title, graph)[0]
        for i, (inside, title) in enumerate(zip(seen, titles, strict=True), 1)
    ]


def numbered(path: Path, number: int) -> Path:
    return path.with_stem(f"{path.stem}-{number}")


def as_numbers(inside: Inside, title: str) -> dict[str, Any]:
    """Return the numbers of the report; of self-attention, only that of the patch that is shown first."""
    rows, columns = inside.grid
    guesses = [{"class": inside.classes[i], "index": i, "probability": float(inside.probabilities[i])}
               for i in inside.best]  # fmt: skip
    start = {"row": inside.start // columns, "column": inside.start % columns}
    return {
        "image": title,
        "model": inside.model,
        "guesses": guesses,
        "class_attention": rounded(inside.class_attention),  # [layer][head][row][column], eq. 8
        "class_attention_to_itself": rounded(inside.to_itself),
        "saliency": [rounded(saliency(layer)) for layer in inside.class_attention],
        "self_attention": {  # [layer][head][row][column]
            "patch": start,
            "before": rounded(inside.before[:, :, inside.start].reshape(-1, inside.before.shape[1], rows, columns)),
            "after": rounded(inside.after[:, :, inside.start].reshape(-1, inside.after.shape[1], rows, columns)),
        },
        "branches": [branch._asdict() for branch in inside.branches],
    }
