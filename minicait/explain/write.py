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
from .facts import Facts
from .facts import as_numbers as known_numbers
from .inside import Inside, look
from .maps import patch_labels
from .pictures import pictures
from .report import report, rounded


def write_report(
    inside: Inside,
    path: Path,
    title: str,
    graph: str,
    png: bool = False,
    numbers: bool = False,
    facts: Facts | None = None,
) -> list[Path]:
    """Write report.html; with `png` also report-saliency-1.png etc., with `numbers` report.json. Return the paths."""
    write_text(path, report(inside, title, graph, facts))
    written = [path]
    if png:
        for name, picture in pictures(inside):
            written.append(path.with_name(f"{path.stem}-{name}.png"))
            with atomic(written[-1]) as file:
                picture.save(file, "PNG")
        if graph:
            written.append(path.with_name(f"{path.stem}-block.svg"))
            write_text(written[-1], graph)
    if numbers:
        written.append(path.with_suffix(".json"))
        write_text(written[-1], json.dumps(as_numbers(inside, title, facts), ensure_ascii=False))
    return written


def write_reports(
    model: Model,
    images: Sequence[np.ndarray],
    titles: Sequence[str],
    classes: Sequence[str],
    path: Path,
    facts: Sequence[Facts],
) -> list[Path]:
    """Write report-1.html, report-2.html and so on, one for each image (H, W, 3) in uint8."""
    seen = [look(model, image, classes) for image in images]
    graph = block_graph(model)
    return [
        write_report(inside, numbered(path, i), title, graph, facts=known)[0]
        for i, (inside, title, known) in enumerate(zip(seen, titles, facts, strict=True), 1)
    ]


def numbered(path: Path, number: int) -> Path:
    return path.with_stem(f"{path.stem}-{number}")


def as_numbers(inside: Inside, title: str, facts: Facts | None = None) -> dict[str, Any]:
    """Return the numbers of the report; of what patches take from each other, only that of the patch shown first."""
    _, columns = inside.grid
    guesses = [{"class": inside.classes[i], "index": i, "probability": float(inside.probabilities[i])}
               for i in inside.best]  # fmt: skip
    patch = {"row": inside.start // columns, "column": inside.start % columns}
    numbers: dict[str, Any] = {"image": title, "model": inside.model, "guesses": guesses}
    numbers |= known_numbers(inside, facts or Facts())
    if len(inside.class_attention):
        numbers["class_attention"] = rounded(inside.class_attention)  # [layer][head][row][column]
        numbers["class_attention_to_itself"] = rounded(inside.to_itself)
        numbers["saliency"] = [
            rounded(saliency(inside.class_attention[layer], inside.share)) for layer in inside.salient
        ]
    for name in ("distillation", "class_maps", "class_weights"):
        if len(values := getattr(inside, name)):
            numbers[name] = rounded(values)
    if len(inside.patch_classes):
        labels = patch_labels(inside)
        names = np.array(labels.names)[labels.which].reshape(inside.grid)
        probability = rounded(labels.probability.reshape(inside.grid))
        numbers["patch_classes"] = {"class": names.tolist(), "probability": probability}
    if len(inside.before):
        kinds = {"before": inside.before, "after": inside.after} if inside.heads_talk else {"before": inside.before}
        numbers["self_attention"] = {"patch": patch, **{kind: _of_start(inside, maps) for kind, maps in kinds.items()}}
    if len(inside.cross_patch):
        numbers["cross_patch"] = {"patch": patch, "weights": _of_start(inside, inside.cross_patch)}
        numbers["sparsity"] = inside.sparsity
    return {**numbers, "branches": [branch._asdict() for branch in inside.branches]}


def _of_start(inside: Inside, maps: np.ndarray) -> Any:
    """The row of the patch that is shown first, as [layer][head][row][column], or without heads."""
    own = maps[..., inside.start, :]
    return rounded(own.reshape(*own.shape[:-1], *inside.grid))
