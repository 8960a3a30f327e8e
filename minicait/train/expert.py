"""Experts: what a teacher and an annotator have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ..files.pretrained import load_model, open_pretrained, outputs_for


class Expert:
    """A trained model that is asked about the classes of some data.

    refusal  what the error says that the model cannot do, if it does not know all of these classes
    outputs  index of the model's output for each class
    hash     sha256 of its weights
    """

    def __init__(
        self,
        weights: str,
        classes: Sequence[str],
        refusal: str,
        img_size: int | None = None,
        device: str = "cpu",
        threads: int | None = None,
        micro_batch: int | None = None,
    ) -> None:
        self.model, self.info = load_model(weights, img_size)
        self.threads, self.micro_batch = threads, micro_batch
        try:
            self.outputs = outputs_for(classes, self.info, self.model.num_classes)
        except ValueError as error:
            raise ValueError(f"{refusal}: {error}") from error
        self.model.to(device)
        with open_pretrained(weights)[0].path.open("rb") as file:
            self.hash = hashlib.file_digest(file, "sha256").hexdigest()
