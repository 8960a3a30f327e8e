"""The bounds that SECURITY.md states are those of the code."""

from pathlib import Path

from minicait.cli.options import THREADS_PER_CPU
from minicait.data import crops, formats, label_file
from minicait.files import archive, bounds, download, fetch, tensorfile, unpickle, zipped
from minicait.models import config
from minicait.run import folder

TEXT = " ".join((Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8").split())


def test_the_bounds_in_the_document():
    million = 10**6
    for words in (
        f"{zipped.MAX_ENTRIES:,} entries", f"{unpickle.MAX_PICKLE // million} MB and {unpickle.MAX_OPCODES:,} steps",
        f"{bounds.MAX_NDIM} axes", f"a header of {tensorfile.MAX_HEADER // million} MB",
        f"names of {bounds.MAX_NAME} characters",
        f"{zipped.MAX_EXPANSION} times its size unpacked, or {zipped.FREE_EXPANSION // million} MB",
        f"images of {config.MAX_SIDE:,} pixels", f"{formats.MAX_BYTES // million} MB, ",
        f"{formats.MAX_PIXELS // million} million pixels", f"{formats.MAX_SIDE:,} a side",
        f"{formats.MAX_METADATA // million} MB of metadata", f"{formats.MAX_SCANS} scans",
        f"{archive.MAX_HEADERS:,} members, paths of {archive.MAX_PATH:,} bytes",
        f"{folder.MAX_PLAN // million} MB for a plan", f"the known size, or {download.MAX_SIZE >> 30} GB",
        f"{fetch.WINDOW} seconds in which less than {fetch.LEAST // 1000} kB arrive",
        f"from {crops.MIN_CROP_RATIO:g} to 1",
        f"{label_file.MAX_CLASSES:,} classes, names of {label_file.MAX_NAME} characters",
        f"{label_file.MAX_CELLS:,} cells a side",
    ):  # fmt: skip
        assert words in TEXT, words
    assert THREADS_PER_CPU == 4 and "four threads for each CPU" in TEXT
