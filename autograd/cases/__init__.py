"""One table of test cases for every operation, used for gradient checks, references, mutations and devices.

case         a case: one operation on inputs drawn from a seeded generator
samples      functions that draw such inputs
basic        cases by hand: arithmetic, elementwise operations, reductions, shapes and indexing
networks     cases by hand: products, attention, layers and losses
convolution  cases by hand: convolution and batch normalisation
sizes        wide and tall cases of operations that take any shape

A new operation needs a small case and a wide and a tall one; a test fails for any operation without them. The table is
part of the package, so that `minicait selftest` can check any machine.
"""

from .basic import BASIC
from .case import Case, roundings_apart
from .convolution import CONVOLUTION
from .networks import NETWORKS
from .sizes import TALL, WIDE

CASES = [*BASIC, *NETWORKS, *CONVOLUTION, *WIDE, *TALL]

__all__ = ["CASES", "Case", "roundings_apart"]
