"""Errors as a person wants them: one sentence and an exit code, no traceback."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from autograd.cuda import DeviceError

from ..files.download import DownloadError
from ..run.signals import Stopped
from ..train import NotFiniteError

# Parameters of the library that are options of the command line, as errors name them: batch_size=8, batch_size must.
PARAMETERS = ("batch_size", "crop_ratio", "img_size", "keep_side", "micro_batch", "patch_size", "precision",
              "train_images", "val_fraction", "val_images")  # fmt: skip
_NAMED = re.compile(rf"(?<![\w./\\-])({'|'.join(PARAMETERS)})(?:=| (?=must\b))")


def in_flags(message: str) -> str:
    """Replace parameter names by flags: "batch_size=8" becomes "--batch-size 8"."""
    return _NAMED.sub(lambda found: f"--{found[1].replace('_', '-')} ", message)


def guarded(work: Callable[[], int], name: str = "minicait") -> int:
    """The exit code of `work`: 2 for bad input, 128 and the signal's number for a run that a signal ended.

    With MINICAIT_DEBUG set, an error comes with its traceback, for whoever doubts that it was the input.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # for names of files that are no text
    try:
        return work()
    except Stopped as stop:
        print(stop)
        return stop.code
    except BrokenPipeError:  # whoever read the output has had enough
        sys.stdout = None
        return 0
    except (ValueError, NotFiniteError, DownloadError, DeviceError, OSError) as error:
        if os.environ.get("MINICAIT_DEBUG"):
            raise
        print(f"{name}: {in_flags(str(error))}", file=sys.stderr)
    except MemoryError as error:
        said = str(error) or "try a smaller model"
        said = said if said.startswith("out of memory") else f"out of memory; {said}"
        print(f"{name}: {said}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    return 2
