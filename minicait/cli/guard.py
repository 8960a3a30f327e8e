"""Errors as one sentence and an exit code, without a traceback."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from autograd.cuda import DeviceError

from ..files.download import DownloadError
from ..run.signals import Stopped
from ..train import NotFiniteError
from .options import flag

# Parameters of the library that are options of the command line, as errors name them: batch_size=8, batch_size must.
PARAMETERS = ("batch_size", "crop_ratio", "img_size", "keep_side", "micro_batch", "patch_size", "precision",
              "train_images", "val_fraction", "val_images")  # fmt: skip
_NAMED = re.compile(rf"(?<![\w./\\-])({'|'.join(PARAMETERS)})(?:=| (?=must\b))")


def in_flags(message: str) -> str:
    """Replace parameter names by flags: "batch_size=8" becomes "--batch-size 8"."""
    return _NAMED.sub(lambda found: f"{flag(found[1])} ", message.removeprefix("recipe: "))


def guarded(work: Callable[[], int], name: str = "minicait") -> int:
    """Run `work` and return its exit code: 2 for bad input, 128 plus its number if a signal stopped a run.

    With MINICAIT_DEBUG set, errors keep their traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # file names may be invalid text
    try:
        return work()
    except Stopped as stop:
        print(stop)
        return stop.code
    except BrokenPipeError:  # such as by `| head`
        sys.stdout = None
        return 0
    except (ValueError, NotFiniteError, DownloadError, DeviceError, OSError) as error:
        if os.environ.get("MINICAIT_DEBUG"):
            raise
        message = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.filename} cannot be read or written: {error.strerror}"
        print(f"{name}: {in_flags(message)}", file=sys.stderr)
    except MemoryError as error:
        message = str(error) or "try a smaller model"
        message = message if message.startswith("out of memory") else f"out of memory; {message}"
        print(f"{name}: {message}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    return 2
