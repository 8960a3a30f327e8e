"""Work in the background: one piece at a time, waited for in the end, and no error is lost."""

import threading

import pytest

from minicait.run.background import Background


def fail():
    raise OSError(28, "No space left on device")


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("minicait")]


def test_it_goes_on_meanwhile_and_is_waited_for_in_the_end():
    release, done = threading.Event(), []
    with (background := Background()):
        background.start(lambda: (release.wait(10), done.append(1)))
        background.raise_error()  # it does not wait
        assert not done
        release.set()
    assert done == [1] and not threads()
    background.wait()  # there is nothing to wait for


def test_one_after_the_other():
    release, order = threading.Event(), []
    background = Background()
    background.start(lambda: (release.wait(10), order.append("first")))
    threading.Timer(0.01, release.set).start()
    background.start(lambda: order.append("second"))
    assert order[0] == "first"
    background.wait()
    assert order == ["first", "second"]


@pytest.mark.parametrize("next_call", ["wait", "start", "exit"])
def test_an_error_is_raised_by_the_next_call(next_call):
    background = Background()
    with pytest.raises(OSError, match="No space left"), background:
        background.start(fail)
        if next_call == "wait":
            background.wait()
        if next_call == "start":
            background.start(lambda: None)
    background.wait()  # it is raised once


def test_an_error_is_raised_as_soon_as_it_is_known():
    background, ended = Background(), threading.Event()

    def work():
        try:
            fail()
        finally:
            ended.set()

    background.start(work)
    ended.wait(10)
    with pytest.raises(OSError, match="No space left"):
        for _ in range(1000):
            background.raise_error()
            threading.Event().wait(0.001)  # the thread has to end first


def test_another_error_comes_first():
    done = []
    with pytest.raises(KeyboardInterrupt), (background := Background()):
        background.start(lambda: (done.append(1), fail()))
        raise KeyboardInterrupt
    assert done == [1] and not threads()
