"""The standard table: what the project says about its speed, measured by one command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..models import find_model
from . import Job, measure
from .summary import summary
from .torch_side import TIMM

PLAIN_PEER = {"timm": "torch", "timm-bf16": "torch-bf16"}  # for models that timm lacks


class Row(NamedTuple):
    model: str
    batch: int
    work: str = "train"
    stochastic_depth: bool = False


ROWS = (
    Row("cait_xxs24_224", 8),
    Row("cait_xxs24_224", 64),
    Row("cait_xxs24_224", 8, stochastic_depth=True),
    Row("cait_s24_224", 4),
    Row("cait_tiny_32", 128),
    Row("cait_tiny_64", 64),
    Row("deit_tiny_patch16_224", 16),
    Row("deit3_small_patch16_224", 8),
    Row("resmlp_12_224", 4),
    Row("patchconvnet_s60_224", 2),
    Row("lvvit_s_224", 2),
    Row("cait_xxs24_224", 8, "predict"),
    Row("cait_xxs24_224", 1, "predict"),
    Row("cait_xxs24_224", 64, "folder"),
)


def measured_rows(threads: int, rounds: int, against: str | None) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Measure the rows, one after the other; yield each with its `summary`, or {"error": reason}.

    What makes the first row fail would make them all: a package that is missing, or a CPU without bfloat16.
    """
    for row in ROWS:
        job = Job(row.model, row.batch, row.work, threads, stochastic_depth=row.stochastic_depth)
        try:
            yield row, summary(job, measure(job, names(row, against), rounds))
        except ValueError as error:
            if row is ROWS[0]:
                raise
            yield row, {"error": str(error)}  # most likely memory ran out, and later rows need less


def names(row: Row, against: str | None) -> list[str]:
    """Names of the sides of a row."""
    if against is None:
        return ["minicait"]
    return ["minicait", against if find_model(row.model)[0].name in TIMM else PLAIN_PEER[against]]
