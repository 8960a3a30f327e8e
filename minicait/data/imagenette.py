"""Imagenette: ten easy classes of ImageNet, 13,394 photographs, downloaded on first use."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..files.archive import extract
from ..files.download import DownloadError, cache_directory, download

HOST = "https://s3.amazonaws.com/fast-ai-imageclas"  # overridden by MINICAIT_IMAGENETTE
UNPACKING = "unpacking-"  # prefix of temporary folders
DAY = 24 * 60 * 60


class Archive(NamedTuple):
    name: str  # of the .tgz, and of the folder in it
    size: int
    sha256: str


# by the shorter side of the images in pixels; `full` has ImageNet's original sizes
ARCHIVES = {
    "160": Archive("imagenette2-160", 99_003_388, "64d0c4859f35a461889e0147755a999a48b49bf38a7e0f9bd27003f10db02fe5"),
    "320": Archive("imagenette2-320", 341_663_724, "569b4497c98db6dd29f335d1f109cf315fe127053cedf69010d047f0188e158c"),
    "full": Archive("imagenette2", 1_557_161_267, "6cbfac238434d89fe99e651496f0812ebc7a10fa62bd42d6874042bf01de4efd"),
}


def imagenette(size: str = "160") -> Path:
    """Return the folder with train/ and val/; download and unpack it into the cache if necessary."""
    if size not in ARCHIVES:
        raise ValueError(f"there is no Imagenette of size {size!r}; the sizes are {', '.join(ARCHIVES)}")
    archive = ARCHIVES[size]
    folder = cache_directory() / "imagenette" / archive.name
    _clear_leftovers(folder.parent)
    if folder.is_dir():
        return folder
    url = f"{os.environ.get('MINICAIT_IMAGENETTE', HOST)}/{archive.name}.tgz"
    # if unpacking was interrupted, the archive is there, and only its hash is checked
    packed = download(url, folder.with_name(f"{archive.name}.tgz"), archive.sha256, archive.size)
    _unpack(packed, folder)
    with suppress(OSError):  # Windows: another process is reading it, and will delete it
        packed.unlink()
    return folder


def _unpack(packed: Path, folder: Path) -> None:
    """Unpack into a temporary folder and rename that, so that `folder` is complete whenever it exists."""
    temporary = Path(tempfile.mkdtemp(prefix=UNPACKING, dir=folder.parent))
    try:
        extract(packed, temporary, limit=2 * packed.stat().st_size)  # JPEG files hardly shrink
        if not (temporary / folder.name).is_dir():
            raise ValueError(f"{packed} holds no folder {folder.name}")
        if hasattr(os, "sync"):
            os.sync()  # all files at once, before the folder has its name and the archive is deleted
        (temporary / folder.name).rename(folder)
    except OSError as error:
        if not folder.is_dir():  # otherwise another process was faster
            raise DownloadError(f"could not unpack {packed}: {error.strerror or error}") from error
    except ValueError as error:
        packed.unlink(missing_ok=True)  # or the next call would find it
        raise DownloadError(f"{error}; it was deleted, try again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _clear_leftovers(parent: Path) -> None:
    """Remove what killed processes left behind over a day ago; newer folders may be in use."""
    for left in parent.glob(f"{UNPACKING}*"):
        with suppress(OSError):  # already gone
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)
