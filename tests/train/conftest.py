import pytest

from tests.train.runs import narrow_presets, train


@pytest.fixture
def narrow():
    with narrow_presets():
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a run with a narrow preset that nothing interrupted."""
    out = tmp_path_factory.mktemp("runs")
    with narrow_presets():
        assert train(out) == 0
    return out / "shapes-tiny-1"
