"""The command that trains by a plan, for the card of its weights."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..data.source import NAMED, Source
from ..train.recipe import RECIPES, Recipe
from .plan import Plan

OPTIONS = ("epochs", "batch_size", "lr", "precision", "seed")  # of a recipe; --set changes the others


def train_command(plan: Plan) -> str:
    """`minicait train` with the options that make this plan. Files and folders are named without where they are."""
    data = asdict(plan.data)
    data["data"] = plan.data.data if plan.data.data in NAMED else plan.data.name
    data["classes"] = None if plan.data.classes is None else ",".join(plan.data.classes)
    data["groups"] = _name(plan.data.groups)
    chosen: dict[str, Any] = {"data": data.pop("data")}
    chosen["preset"] = None if plan.weights is not None else plan.model
    chosen |= {name: value for name, value in data.items() if value != getattr(Source(), name)}
    for name in ("weights", "teacher", "token_labels"):
        chosen[name] = _name(getattr(plan, name))
    chosen |= {name: getattr(plan, name) for name in ("img_size", "patch_size", "evaluate_every")}
    known = {name: _settings(recipe) | _implied(recipe, plan) for name, recipe in RECIPES.items()}
    own = _settings(plan.recipe)
    changes = {name: {key: own[key] for key in own if own[key] != known[name][key]} for name in known}
    chosen["recipe"] = min(changes, key=lambda name: len(changes[name]))
    changed = changes[chosen["recipe"]] | {"seed": plan.recipe.seed}
    chosen |= {name: changed.pop(name) for name in OPTIONS if name in changed}
    words = ["minicait", "train"]
    for name, value in chosen.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    for name, value in changed.items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join([*words, *["--overfit-one-batch"] * plan.overfit])


def _implied(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    """Settings that the command line derives from other options."""
    implied = {} if plan.weights is None else {"init": "reference"}
    if plan.teacher is not None and recipe.distillation is None:
        implied["distillation"] = "hard"
    return implied


def _settings(recipe: Recipe) -> dict[str, Any]:
    settings = asdict(recipe)
    return settings | settings.pop("augmentation")


def _name(path: str | None) -> str | None:
    return None if path is None else Path(path).name
