"""The part of a model card that a run can tell: data, recipe, and accuracy over the epochs."""

from __future__ import annotations

from pathlib import Path

from ..data.source import NAMED
from ..text import printable
from ..train.recipe import main_settings
from .command import train_command
from .folder import read_plan
from .journal import read_log

ROWS = 8  # of the table of accuracies, about


def training_section(folder: Path) -> str:
    """Markdown on the training of a run, from its args.json and log.csv."""
    plan, rows = read_plan(folder), [row for row in read_log(folder) if row["top1"]]
    if not rows:
        raise ValueError(f"the run in {folder} has no evaluated epoch yet")
    data = plan.data.data if plan.data.data in NAMED else f"the folder {plan.data.name}"
    start = f", from the weights {Path(plan.weights).name}" if plan.weights is not None else ""
    settings = ", ".join(f"{name} {value}" for name, value in main_settings(plan.recipe).items())
    shown = rows[:: -max(1, len(rows) // ROWS)][::-1]  # the last one among them
    try:
        lines = [
            f"| {row['epoch']} | {float(row['ema_top1'] or row['top1']):.1%} | "
            f"{float(row['ema_top5'] or row['top5']):.1%} | {float(row['seconds']) / 60:.0f} |"
            for row in shown
        ]
        exported = _best(rows)
    except ValueError as error:
        raise ValueError(f"{folder / 'log.csv'} is damaged ({error})") from error
    table = "\n".join(["| epoch | top-1 | top-5 | minutes |", "| ---: | ---: | ---: | ---: |", *lines])
    whose = " of the averaged weights" if rows[-1]["ema_top1"] else ""
    curve = f"Validation accuracy{whose}:"
    about = [f"Trained on {data}{start}:", f"    {printable(train_command(plan))}", f"Recipe: {settings}.", exported]
    return "\n\n".join(["## Training", *about, curve, table, "![Loss and accuracy over the epochs](curves.svg)", ""])


def _best(rows: list[dict[str, str]]) -> str:
    """Accuracy of the run's best weights, which are the ones to export; of equals the last."""
    kinds = (("", "top1", "top5"), (", averaged", "ema_top1", "ema_top5"))
    found = [
        (float(row[top1]), int(row["epoch"]), kind, float(row[top5]))
        for row in rows
        for kind, top1, top5 in kinds
        if row[top1]
    ]
    top1, epoch, kind, top5 = max(found)
    both = f" ({len(rows)} evaluations of the weights and their average)" if len(found) == 2 * len(rows) > 2 else ""
    chosen = f", the best of {len(found)} candidates{both} on these images" if len(found) > 1 else ""
    scores = f"top-1 {top1:.1%} and top-5 {top5:.1%} in validation"
    return f"These weights are those after epoch {epoch}{kind}: {scores}{chosen}."
