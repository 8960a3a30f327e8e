"""Archives that are fine, damaged, or try to write outside the folder."""

import gzip
import io
import re
import stat
import sys
import tarfile

import numpy as np
import pytest

from minicait.files.archive import extract

NOISE = np.random.default_rng(0).bytes(20_000)
FILES = {"top/a": b"one", "top/deep/b": NOISE, "top/deep/block": NOISE[:1024], "top/empty": b""}
PLENTY = 10**6


def member(name, content=b"", kind=tarfile.REGTYPE, **more):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for key, value in more.items():
        setattr(info, key, value)
    return info, content


def tar_of(*members, **options):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def good_tar(**options):
    return tar_of(member("top", kind=tarfile.DIRTYPE), *(member(*item) for item in FILES.items()), **options)


def unpacked(tmp_path, tgz, limit=PLENTY):
    """Unpack a .tgz with these bytes and return {path: content}."""
    (tmp_path / "it.tgz").write_bytes(tgz)
    extract(tmp_path / "it.tgz", tmp_path / "out", limit)
    return files_below(tmp_path / "out")


def files_below(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_and_folders_come_out(tmp_path, kind):
    assert unpacked(tmp_path, gzip.compress(good_tar(format=kind))) == FILES


def test_names_that_are_long_foreign_or_start_with_a_dot(tmp_path):
    names = ["./a", ".hidden", "..b", "c..d", "Äpfel/日本", "long/" * 30 + "name", "x" * 200, "n0_1.JPEG", "with space"]
    tgz = gzip.compress(tar_of(member("./", kind=tarfile.DIRTYPE), *(member(name, name.encode()) for name in names)))
    assert unpacked(tmp_path, tgz) == {name.removeprefix("./"): name.encode() for name in names}


def test_of_two_members_with_one_name_the_last_counts_as_it_does_for_tar(tmp_path):
    assert unpacked(tmp_path, gzip.compress(tar_of(member("a", b"long, first"), member("a", b"last")))) == {
        "a": b"last"
    }


@pytest.mark.skipif(sys.platform == "win32", reason="has no such permissions")
def test_permissions_and_owners_are_not_taken_over(tmp_path):
    private = {"mode": 0o6777, "uid": 12345, "gid": 12345, "mtime": 1}
    folder = member("folder", kind=tarfile.DIRTYPE, **private | {"mode": 0})  # nobody could enter it
    unpacked(tmp_path, gzip.compress(tar_of(folder, member("folder/file", b"x", **private))))
    (tmp_path / "usual").write_bytes(b"x")
    made, usual = (tmp_path / "out/folder/file").stat(), (tmp_path / "usual").stat()
    assert (made.st_mode, made.st_uid, made.st_gid) == (usual.st_mode, usual.st_uid, usual.st_gid)
    assert not made.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR)


UNSAFE_NAMES = [
    "/absolute", "//absolute", "../outside", "top/../../outside", "top/..", "..", "a/.. /b", "a./b", "C:/drive",
    "C:drive", "..\\outside", "\\\\host\\share", "stream:hidden", "new\nline",
]  # fmt: skip


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
@pytest.mark.parametrize("name", UNSAFE_NAMES)
def test_paths_that_lead_elsewhere_are_refused(tmp_path, name, kind):
    before = tmp_path / "out" / "before"
    tgz = gzip.compress(tar_of(member("before", b"x"), member(name, kind=kind)))
    with pytest.raises(ValueError, match=rf"holds {re.escape(repr(name))}, which is not a plain relative path"):
        unpacked(tmp_path, tgz)
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == [tmp_path / "it.tgz", before]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds '\.', which is not a plain relative path"):
        unpacked(tmp_path, gzip.compress(tar_of(member(".", b"x"))))


LINKS_AND_DEVICES = {
    "symbolic link": (tarfile.SYMTYPE, {"linkname": "/etc"}),
    "harmless symbolic link": (tarfile.SYMTYPE, {"linkname": "before"}),
    "hard link": (tarfile.LNKTYPE, {"linkname": "before"}),
    "character device": (tarfile.CHRTYPE, {"devmajor": 1, "devminor": 3}),
    "block device": (tarfile.BLKTYPE, {"devmajor": 8}),
    "pipe": (tarfile.FIFOTYPE, {}),
    "sparse file": (tarfile.REGTYPE, {"pax_headers": {"GNU.sparse.map": "0,0", "GNU.sparse.size": "9999999"}}),
}


@pytest.mark.parametrize("what", LINKS_AND_DEVICES)
def test_links_and_devices_are_refused(tmp_path, what):
    kind, more = LINKS_AND_DEVICES[what]
    tgz = gzip.compress(tar_of(member("before", b"x"), member("it", kind=kind, **more), member("it/inside", b"x")))
    with pytest.raises(ValueError, match="holds 'it', which is neither a file nor a folder"):
        unpacked(tmp_path, tgz)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["before"]


def test_more_than_the_limit_is_not_written(tmp_path):
    total = sum(map(len, FILES.values()))
    assert unpacked(tmp_path, gzip.compress(good_tar()), limit=total) == FILES
    with pytest.raises(ValueError, match=r"more bytes than it should, counted up to 'top/deep/block'"):
        unpacked(tmp_path, gzip.compress(good_tar()), limit=total - 1)
    bomb = gzip.compress(tar_of(member("bomb", bytes(PLENTY + 1))))
    with pytest.raises(ValueError, match=r"counted up to 'bomb'"):
        unpacked(tmp_path, bomb)
    assert "bomb" not in files_below(tmp_path / "out")


def test_a_truncated_archive_is_refused_wherever_it_ends(tmp_path):
    tgz = gzip.compress(good_tar())
    for length in [*range(0, len(tgz), 1499), *range(len(tgz) - 30, len(tgz))]:
        with pytest.raises(ValueError, match=r"it\.tgz is damaged: "):
            unpacked(tmp_path, tgz[:length])


def test_an_archive_that_was_truncated_before_it_was_compressed_is_refused(tmp_path):
    tar = good_tar()
    end = len(tar.rstrip(b"\0"))
    for length in range(0, end + 512, 512):
        with pytest.raises(ValueError, match=r"it\.tgz is damaged: "):
            unpacked(tmp_path, gzip.compress(tar[:length]))


@pytest.mark.parametrize("content", [NOISE, b"".join(b"%d, " % i for i in range(5000))])
def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path, content):
    """In incompressible data by the checksum at the end, elsewhere also by invalid codes."""
    tgz = gzip.compress(tar_of(member("a", content), member("b", content)), mtime=0)
    for place in [0, *range(10, len(tgz), 997), len(tgz) - 8, len(tgz) - 1]:
        damaged = bytearray(tgz)
        damaged[place] ^= 8
        with pytest.raises(ValueError, match=r"it\.tgz (is damaged|holds)"):
            unpacked(tmp_path, bytes(damaged))


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path):
    tar = bytearray(good_tar())
    place = tar.index(b"top/deep/block")
    tar[place] ^= 1  # invalidates the header's own checksum
    with pytest.raises(ValueError, match="a header in the middle of it cannot be read"):
        unpacked(tmp_path, gzip.compress(bytes(tar)))


@pytest.mark.parametrize("content", [b"", b"<html>please log in</html>", NOISE, gzip.compress(NOISE), good_tar()])
def test_what_is_no_archive_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match=r"it\.tgz is damaged: "):
        unpacked(tmp_path, content)


def test_trouble_with_the_disk_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        extract(tmp_path / "nothing.tgz", tmp_path / "out", PLENTY)
    (tmp_path / "out").write_text("a file where the folder should be")
    with pytest.raises(OSError):
        unpacked(tmp_path, gzip.compress(good_tar()))
