"""Reports on disk: the page, and if asked for, its pictures and its numbers beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..models import Model
from .attention import saliency
from .block_graph import block_graph
from .inside import Inside, look
from .pictures import pictures
from .report import report, rounded


def write_report(
    inside: Inside, path: Path, title: str, graph: str, png: bool = False, numbers: bool = False
) -> list[Path]:
    """report.html; with `png` report-saliency-1.png and so on, with `numbers` report.json. Returns what was written."""
    path.write_text(report(inside, title, graph), encoding="utf-8")
    written = [path]
    if png:
        for name, picture in pictures(inside):
            written.append(path.with_name(f"{path.stem}-{name}.png"))
            picture.save(written[-1])
        written.append(path.with_name(f"{path.stem}-block.svg"))
        written[-1].write_text(graph, encoding="utf-8")
    if numbers:
        written.append(path.with_suffix(".json"))
        written[-1].write_text(json.dumps(as_numbers(inside, title), ensure_ascii=False), encoding="utf-8")
    return written


def write_reports(
    model: Model, images: Sequence[np.ndarray], titles: Sequence[str], classes: Sequence[str], path: Path
) -> list[Path]:
    """One for each image (H, W, 3) in uint8: report-1.html, report-2.html and so on."""
    seen = [look(model, image, classes) for image in images]
    graph = block_graph(model)
    return [
        write_report(inside, numbered(path, i), title, graph)[0]
        for i, (inside, title) in enumerate(zip(seen, titles, strict=True), 1)
    ]


def numbered(path: Path, number: int) -> Path:
    return path.with_stem(f"{path.stem}-{number}")


def as_numbers(inside: Inside, title: str) -> dict[str, Any]:
    """All of the report but for self-attention, of which there is too much: that of the patch which is shown first."""
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
