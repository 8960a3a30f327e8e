"""The part of a model card that a run can tell: data, recipe, and accuracy over the epochs."""

from __future__ import annotations

import csv
from pathlib import Path

from ..data.source import NAMED
from ..train.recipe import main_settings
from .folder import read_plan

ROWS = 8  # of the table of accuracies, about


def training_section(folder: Path) -> str:
    """Markdown on the training of a run, from its args.json and log.csv."""
    plan = read_plan(folder)
    try:
        rows = list(csv.DictReader((folder / "log.csv").read_text(encoding="utf-8").splitlines()))
        evaluated = [row for row in rows if row["top1"]]
        cells = [(int(row["epoch"]), *_accuracies(row), float(row["seconds"]) / 60) for row in evaluated]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'log.csv'} is not the log of a run ({error})") from error
    if not cells:
        raise ValueError(f"the run in {folder} has no evaluated epoch yet")
    data = plan.data.data if plan.data.data in NAMED else f"the folder {plan.data.name}"
    start = f", from the weights {Path(plan.weights).name}" if plan.weights is not None else ""
    settings = ", ".join(f"{name} {value}" for name, value in main_settings(plan.recipe).items())
    shown = cells[:: max(1, len(cells) // ROWS)]
    lines = [f"| {n} | {top1:.1%} | {top5:.1%} | {minutes:.0f} |" for n, top1, top5, minutes in {*shown, cells[-1]}]
    lines.sort(key=lambda line: int(line.split("|")[1]))
    table = "\n".join(["| epoch | top-1 | top-5 | minutes |", "| ---: | ---: | ---: | ---: |", *lines])
    curves = "![Loss and accuracy over the epochs](curves.svg)"
    parts = ["## Training", f"Trained on {data}{start}.", f"Recipe: {settings}.", "Validation accuracy:", table, curves]
    return "\n\n".join([*parts, ""])


def _accuracies(row: dict[str, str]) -> tuple[float, float]:
    """top-1 and top-5 of the averaged weights, if there are any."""
    return float(row["ema_top1"] or row["top1"]), float(row["ema_top5"] or row["top5"])
