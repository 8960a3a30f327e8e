"""Checks of chapter 9."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ...optim import AdamW
from ...optim.schedule import learning_rate
from ..compare import same, unchanged
from ..exercise import Wrong
from ..learner import Learner

NAMES = ("theta", "g", "m", "v")
WARMUPS = [(100, 10, 1.0, 0.001, 0.01), (40, 0, 0.5, 1e-6, 1e-5), (7, 3, 2.0, 0.0, 0.0)]


def adamw(me: Learner) -> None:
    theirs = me.get("optim.adamw")
    for dtype in (np.float64, np.float32):
        for lr, decay, betas, eps in ((0.01, 0.05, (0.9, 0.999), 1e-8), (0.1, 0.0, (0.5, 0.9), 0.1)):
            rng = np.random.default_rng(0)
            theta = rng.standard_normal((3, 4)).astype(dtype)
            state = (theta, np.zeros_like(theta), np.zeros_like(theta))
            settings: Any = SimpleNamespace(lr=lr, betas=betas, eps=eps)
            for t in range(1, 6):
                me.case = f"step {t}, lr = {lr:g}, decay = {decay:g}, betas = {betas}, eps = {eps:g}"
                g = rng.standard_normal((3, 4)).astype(dtype)
                given = [state[0], g, *state[1:]]
                before = [x.copy() for x in given]
                found = theirs(*given, t, lr, decay, betas, eps)
                if not isinstance(found, tuple | list) or len(found) != 3:
                    raise Wrong("expected the new theta, m and v")
                unchanged("adamw", NAMES, given, before)
                want = AdamW.update(settings, before[0], g, before[2], before[3], t, decay)
                for name, a, b, beta in zip("mv", found[1:], want[1:], betas, strict=True):
                    corrected = b / (1 - beta**t)
                    if np.shape(a) == b.shape and np.allclose(a, corrected, rtol=1e-5, atol=0):
                        raise Wrong(f"{name} is the corrected one: return it without the correction")
                    same(name, a, b)
                same("theta", found[0], want[0])
                state = want


def schedule(me: Learner) -> None:
    theirs = me.get("optim.learning_rate")
    for total, warmup, peak, start, final in WARMUPS:
        for step in range(total + 2):
            me.case = f"step {step} of {total}, warm-up {warmup}, peak {peak:g}, start {start:g}, final {final:g}"
            want = learning_rate(step, total, warmup, peak, start, final)
            same("the learning rate", theirs(step, total, warmup, peak, start, final), want)
