"""The fastest exponential of this NumPy: e^x = EXP(UNIT x), where UNIT is folded into a factor that x has anyway.

exp2 takes half the time of exp where NumPy has Intel's vector library, and several times as long elsewhere.
"""

from __future__ import annotations

import math
import sys

import numpy as np

_FOUND = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # on this CPU
_IS_VECTORISED = sys.platform == "linux" and not {"AVX512_SKX", "X86_V4"}.isdisjoint(_FOUND)
EXP, UNIT = ("exp2", 1 / math.log(2)) if _IS_VECTORISED else ("exp", 1.0)
