"""The real CuPy on the host for the tests of this folder, and for them only: `pytest -m hostcuda`."""

import numpy as np
import pytest

from tests import hostcuda
from tests.hostcuda import devices


@pytest.fixture(scope="session", autouse=True)
def _on_the_host():
    if (reason := hostcuda.why_not()) is not None:
        pytest.skip(reason)
    hostcuda.install()
    from autograd import cuda

    cuda._usable.clear()  # another test may have asked before


@pytest.fixture(autouse=True)
def _no_word_on_invalid_values():
    """OpenBLAS fills a vector register up with what happens to be on the stack, and throws those results away.

    A product of (2, 5) with (5,) in float32 does so. If that was a signalling NaN, of which there are more than usual
    around here, NumPy warns of an invalid value although the result has none.
    """
    with np.errstate(invalid="ignore"):
        yield


@pytest.fixture(autouse=True)
def _first_device(_on_the_host):
    """Wherever the test before it worked last."""
    devices.set_current(0)


@pytest.fixture
def cp(_on_the_host):
    import cupy

    return cupy
