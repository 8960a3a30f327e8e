"""Errors as one sentence and an exit code, without a traceback."""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Callable

from autograd.cuda import DeviceError

from ..data.formats import quiet_decoders
from ..files.download import DownloadError
from ..run.signals import Stopped
from ..text import printable
from ..train import NotFiniteError, RanksError
from ..train.job import fail, finish
from ..train.workers import WorkerError
from .options import flag

LONGEST = 500  # characters of a message
SENTENCES = (ValueError, OSError, NotFiniteError, DownloadError, DeviceError, WorkerError, RanksError)  # for users

# Parameters of the library that are options of the command line, as errors name them: batch_size=8, batch_size must.
PARAMETERS = ("batch_size", "cells", "classes", "crop_ratio", "img_size", "keep_side", "micro_batch", "patch_size",
              "precision", "train_images", "val_fraction", "val_images", "window")  # fmt: skip
_NAMED = re.compile(rf"(?<![\w./\\-])({'|'.join(PARAMETERS)})(?:=| (?=must\b))")


def in_flags(message: str) -> str:
    """Replace parameter names by flags: "batch_size=8" becomes "--batch-size 8". A damaged file has no flags."""
    if "is damaged" in message:
        return message
    own = message.removeprefix("Trainer: ").removeprefix("recipe: ")
    own = own.replace("needs a teacher", "needs --teacher FILE")
    if own != message and own.startswith("crop_ratio"):  # is an option of eval, but not of train
        return own
    return _NAMED.sub(lambda found: f"{flag(found[1])} ", own)


def guarded(work: Callable[[], int], name: str = "minicait") -> int:
    """Run `work` and return its exit code: 2 for bad input, 128 plus its number if a signal stopped a run.

    With MINICAIT_DEBUG set, errors keep their traceback.
    """
    _open_streams()
    quiet_decoders()
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # NumPy's: values that are not finite get a sentence
    try:
        code = work()
        _flush()
        finish(code)
        return code
    except Stopped as stop:
        print(printable(stop))
        fail(stop.code)
        return stop.code
    except BrokenPipeError:  # such as by `| head`
        sys.stdout = None
        fail(0)
        return 0
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        fail(130)
        return 130
    except Exception as error:
        message = _sentence(error)
        if message is None or os.environ.get("MINICAIT_DEBUG"):
            raise  # under MPI, a hook ends the other ranks
        fail(2, f"{name}: ", _shortened(printable(in_flags(message))))
        return 2


def _flush() -> None:
    """Write out what was printed: at the end of the program, a full disk would be a traceback."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(f"the output cannot be written: {error.strerror}") from error


def _open_streams() -> None:
    """Open streams that the parent process has closed, or the next file would be in their place.

    Text that the terminal's encoding does not have is printed with escapes.
    """
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, stream) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
            setattr(sys, stream, os.fdopen(number, "r" if number == 0 else "w"))
    for output in (sys.stdout, sys.stderr):
        if hasattr(output, "reconfigure"):
            output.reconfigure(errors="backslashreplace")


def _sentence(error: Exception) -> str | None:
    """Message for the user, or None if the error is a bug."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        message = str(error) if isinstance(error, MemoryError) else ""
        return message if message.startswith("out of memory") else f"out of memory; {message or 'try a smaller model'}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be read or written: {error.strerror}"
    if isinstance(error, OSError) and error.strerror is not None:
        return f"a file cannot be read or written: {error.strerror}"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "the system allows no more threads; try --threads 1"
    return str(error) if isinstance(error, SENTENCES) else None


def _shortened(message: str) -> str:
    """A message without its middle, if it repeats more of a file than anybody would read."""
    return message if len(message) <= LONGEST else f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
