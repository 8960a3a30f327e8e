"""The real CuPy on the host for the tests of this folder, and for them only: `pytest -m hostcuda`."""

import pytest

from tests import hostcuda


@pytest.fixture(scope="session", autouse=True)
def _on_the_host():
    if (reason := hostcuda.why_not()) is not None:
        pytest.skip(reason)
    hostcuda.install()
    from autograd import cuda

    cuda.why_unusable.cache_clear()  # another test may have asked before


@pytest.fixture
def cp(_on_the_host):
    import cupy

    return cupy
