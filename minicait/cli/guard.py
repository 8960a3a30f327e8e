"""Errors as a person wants them: one sentence and an exit code, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from autograd.cuda import DeviceError

from ..download import DownloadError
from ..threads import cpu_count
from ..train import NotFiniteError
from ..train.signals import Stopped


def guarded(work: Callable[[], int], name: str = "minicait") -> int:
    """The exit code of `work`: 2 for bad input, 128 and the signal's number for a run that a signal ended."""
    try:
        return work()
    except Stopped as stop:
        print(stop)
        return stop.code
    except BrokenPipeError:  # whoever read the output has had enough
        sys.stdout = None
        return 0
    except (ValueError, NotFiniteError, DownloadError, DeviceError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
    except MemoryError:
        half = cpu_count() // 2
        fewer = f"try --threads {half} (each holds a micro-batch and its gradients), or " if half else "try "
        print(f"{name}: out of memory; {fewer}a smaller model", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    return 2
