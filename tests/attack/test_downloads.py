"""Servers that send too much, never end, lie, or lead elsewhere: each gets one sentence, and soon."""

import hashlib
import itertools
import time
import urllib.request

import pytest

from minicait.files import download as module
from minicait.files import fetch
from minicait.files.download import DownloadError, download
from tests.attack.bounded import refused
from tests.local_server import raw_server

CONTENT = bytes(range(256)) * 4
GOOD = hashlib.sha256(CONTENT).hexdigest()
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ZEROS = bytes(1 << 16)
END = b"\r\n"


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(fetch, "TIMEOUT", 5)
    monkeypatch.setattr(fetch, "WINDOW", 5)
    monkeypatch.setattr(fetch, "LEAST", 100)
    monkeypatch.setattr(module, "MAX_SIZE", 10**6)


def endless(start, again=ZEROS, pause=0.0):
    """Chunks: `start`, then `again` for ever."""

    def answer():
        yield start
        while True:
            time.sleep(pause)
            yield again

    return answer


def once(*lines, body=b"", status=b"HTTP/1.1 200 OK"):
    return lambda: [END.join([status, *lines, b"", body])]


def redirect(target, *lines):
    return once(b"Location: " + target, *lines, status=b"HTTP/1.1 302 Found")


def redirects_that_lead_on():
    numbers = itertools.count()
    return lambda: [END.join([b"HTTP/1.1 302 Found", b"Location: /%d" % next(numbers), b"", b""])]


# without a known size: {attack: (answer, reason)}
ATTACKS = {
    "endless body": (endless(OK + END), "more than the 1,000,000 bytes"),
    "endless chunks": (endless(CHUNKED, b"4000\r\n" + bytes(0x4000) + END), "more than the 1,000,000 bytes"),
    "huge length": (endless(OK + b"Content-Length: 999999999999999\r\n\r\n"), "more than any file here has"),
    "negative length": (once(b"Content-Length: -5"), "announces a size of '-5'"),
    "length in words": (once(b"Content-Length: many"), "announces a size of 'many'"),
    "length of 5000 digits": (once(b"Content-Length: " + b"9" * 5000), "announces a size of '999"),
    "length in superscript": (once(b"Content-Length: \xb2"), "announces a size of '²'"),
    "linked size of 31 digits": (once(b"X-Linked-Size: 1" + b"0" * 30), "announces a size of '1000"),
    "linked size in superscript": (redirect(b"/", b"X-Linked-Size: \xb2"), "announces a size of '²'"),
    "two sizes": (once(b"X-Linked-Size: 7", b"Content-Length: 8", body=b"12345678"), "8 bytes instead of 7"),
    "too short": (once(b"Content-Length: 8", body=b"1234"), "ended early, after 4 of 8 bytes"),
    "compressed": (once(b"Content-Encoding: gzip", b"Content-Length: 4", body=b"\x1f\x8b\x08\0"), "compressed (gzip)"),
    "endless 416": (once(status=b"HTTP/1.1 416 Range Not Satisfiable"), "Range Not Satisfiable"),
    "endless 100": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), "too slow"),
    "endless 100, slowly": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.02), "too slow"),
    "dripping status": (endless(b"HTTP/1.1 2", b"0", pause=0.02), "too slow"),
    "dripping header": (endless(OK, b"x", pause=0.02), "too slow"),
    "dripping body": (endless(OK + b"Content-Length: 1000\r\n\r\n", b"x", pause=0.02), "too slow"),
    "dripping chunks": (endless(CHUNKED, b"1\r\nx\r\n", pause=0.02), "too slow"),
    "dripping chunk size": (endless(CHUNKED, b"0", pause=0.02), "too slow"),
    "endless trailers": (endless(CHUNKED + b"0\r\n", b"X: y\r\n" * 1000), "too slow"),
    "silence": (endless(b"", b"", pause=0.01), "timed out"),
    "endless header line": (endless(OK + b"X: ", b"x" * 1000), "got more than 65536 bytes"),
    "endless headers": (endless(OK, b"X: y\r\n"), "got more than 100 headers"),
    "endless status": (endless(b"HTTP/1.1 200 ", b"x" * 1000), "got more than 65536 bytes"),
    "a long reason": (once(status=b"HTTP/1.1 404 " + b"no " * 20_000), "no no no"),
    "no HTTP": (lambda: [b"SSH-2.0-OpenSSH_9.6\r\n"], "SSH-2.0"),
    "nothing": (lambda: [], "closed connection without response"),
    "no content": (once(status=b"HTTP/1.1 204 No Content"), "different range than requested (status 204)"),
    "another protocol": (once(status=b"HTTP/1.1 101 Switching Protocols"), "Switching Protocols"),
    "no such status": (once(status=b"HTTP/1.1 999 Whatever"), "Whatever"),
    "chunks of nonsense": (once(b"Transfer-Encoding: chunked", body=b"zz\r\nxx\r\n"), "IncompleteRead"),
    "a range not asked for": (once(b"Content-Range: bytes 5-9/10", status=b"HTTP/1.1 206 OK"), "a different range"),
    "a range of nonsense": (once(b"Content-Range: bytes 0-\xb2/9", status=b"HTTP/1.1 206 OK"), "a different range"),
    "a huge range": (once(b"Content-Range: bytes 0-9/" + b"9" * 18, status=b"HTTP/1.1 206 OK"), "more than any file"),
    "redirect to itself": (redirect(b"/file"), "would lead to an infinite loop"),
    "redirects that lead on": (redirects_that_lead_on(), "would lead to an infinite loop"),
    "redirect to a file": (redirect(b"file:///etc/passwd"), "is not allowed"),
    "redirect to ftp": (redirect(b"ftp://127.0.0.1/x"), "which is not trusted"),
    "redirect to data": (redirect(b"data:,x"), "is not allowed"),
    "redirect to half an address": (redirect(b"http://[::1/"), "Invalid IPv6 URL"),
    "redirect to port x": (redirect(b"http://127.0.0.1:x/"), "nonnumeric port"),
    "redirect to a long label": (redirect(b"http://" + b"a" * 100 + b"/"), "cannot be read"),
    "redirect to a long address": (redirect(b"gopher://" + b"a" * 60_000 + b"/"), "gopher://aaa"),
    "redirect with an endless body": (endless(b"HTTP/1.1 302 Found\r\nLocation: file:///\r\n\r\n"), "is not allowed"),
    "redirect on with an endless body": (endless(b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n"), "infinite loop"),
}  # fmt: skip


def attack(answer, reason, path, most=4e6, **known):
    with raw_server(answer) as server:
        start = time.monotonic()
        with pytest.raises(DownloadError) as caught:
            download(f"{server.url}/file", path, **known)
        assert time.monotonic() - start < 4  # of 5 without an end
    message = str(caught.value)
    assert reason in message and len(message) < 300 and "\n" not in message, message
    assert server.sent < most and len(server.requests) <= 12 and not path.exists()
    return server


@pytest.mark.parametrize("what", ATTACKS)
def test_attacks(tmp_path, monkeypatch, what):
    if ATTACKS[what][1] == "too slow":
        monkeypatch.setattr(fetch, "WINDOW", 0.15)
    if ATTACKS[what][1] == "timed out":
        monkeypatch.setattr(fetch, "TIMEOUT", 0.2)
    attack(*ATTACKS[what], tmp_path / "file", most=1e9 if "endless 100" in what or "trailers" in what else 12e6)


KNOWN = {
    "endless body": (endless(OK + END), "more than the 1,024 bytes"),
    "one byte too many": (once(body=CONTENT + b"x"), "more than the 1,024 bytes"),
    "a larger length": (endless(OK + b"Content-Length: 603000000\r\n\r\n"), "603,000,000 bytes instead of 1,024"),
    "a smaller length": (once(b"Content-Length: 4", body=b"html"), "announces 4 bytes instead of 1,024"),
    "other bytes": (once(b"Content-Length: 1024", body=bytes(1024)), "its size or SHA-256 is wrong"),
}


@pytest.mark.parametrize("what", KNOWN)
def test_a_known_size_is_enforced_while_streaming(tmp_path, what):
    attack(*KNOWN[what], tmp_path / "file", sha256=GOOD, size=len(CONTENT))
    assert list(tmp_path.iterdir()) == []


def chunked(content, size=100):
    parts = [content[i : i + size] for i in range(0, len(content), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


FINE = {
    "a length": once(b"Content-Length: 1024", body=CONTENT),
    "no length": once(body=CONTENT),
    "chunks": once(b"Transfer-Encoding: chunked", body=chunked(CONTENT)),
    "100 first": lambda: [b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + OK + END + CONTENT],
    "the whole range": once(b"Content-Range: bytes 0-1023/*", status=b"HTTP/1.1 206 OK", body=CONTENT),
    "a long ETag": once(b'ETag: "' + b"x" * 60_000 + b'"', body=CONTENT),
    "an ETag with escapes": once(b'ETag: "\x1b[2J\x00"', body=CONTENT),
}


@pytest.mark.parametrize("known", [{}, {"sha256": GOOD, "size": 1024}])
@pytest.mark.parametrize("what", FINE)
def test_good_answers_arrive(tmp_path, what, known):
    with raw_server(FINE[what]) as server:
        assert download(f"{server.url}/file", tmp_path / "file", **known).read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_slow_server_that_is_fast_enough(tmp_path, monkeypatch):
    """100 bytes every tenth of a second, where 100 in half a second are the least."""

    def slowly():
        yield OK + b"Content-Length: 1024\r\n\r\n"
        for start in range(0, 1024, 100):
            time.sleep(0.1)
            yield CONTENT[start : start + 100]

    monkeypatch.setattr(fetch, "WINDOW", 0.5)
    with raw_server(slowly) as server:
        assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT


def test_a_hash_tells_which_bytes_were_meant(tmp_path):
    with raw_server(once(b"Content-Encoding: gzip", body=CONTENT)) as server:
        assert download(f"{server.url}/file", tmp_path / "file", sha256=GOOD).read_bytes() == CONTENT


@pytest.mark.parametrize("tag", [b'"' + b"x" * 60_000 + b'"', b'"\x1b"', b'W/"weak"', b"bare", b'"\xff"'])
def test_an_odd_etag_is_neither_kept_nor_sent_back(tmp_path, tag):
    answer = once(b"Content-Length: 1024", b"ETag: " + tag, body=CONTENT[:500])
    for _ in range(2):
        server = attack(answer, "after 500 of 1,024 bytes", tmp_path / "file")
        assert b"If-Range" not in b"".join(server.requests)
    assert (tmp_path / "file.part.etag").read_bytes() == b""


def test_416_again_and_again(tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:9])
    (tmp_path / "file.part.etag").write_text('"tag"')
    server = attack(once(status=b"HTTP/1.1 416 No"), "No", tmp_path / "file")
    assert len(server.requests) == 2 and b"Range: bytes=9-\r\n" in server.requests[0]


@pytest.mark.parametrize("claim", [b"bytes 0-1023/1024", b"bytes 9-1023/2048", b"bytes 9-", b"9-1023/1024", b""])
def test_a_range_that_does_not_continue_the_part_is_refused_and_the_part_kept(tmp_path, claim):
    (tmp_path / "file.part").write_bytes(CONTENT[:9])
    (tmp_path / "file.part.etag").write_text('"tag"')
    answer = once(b"Content-Range: " + claim, status=b"HTTP/1.1 206 OK", body=CONTENT[9:])
    attack(answer, "9 bytes are kept", tmp_path / "file", size=1024)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:9]


def test_a_page_to_log_in_does_not_replace_what_has_arrived(tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:9])
    (tmp_path / "file.part.etag").write_text('"tag"')
    attack(once(b"Content-Length: 4", body=b"html"), "9 bytes are kept", tmp_path / "file", size=1024)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:9]


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [("https", "https", True), ("https", "http", False), ("http", "https", True), ("http", "http", True)],
)
def test_redirects_do_not_give_up_encryption(old, new, allowed):
    class Body:
        def close(self): ...

    def follow():
        request = urllib.request.Request(f"{old}://a/")
        return fetch.Redirects().redirect_request(request, Body(), 302, "Found", {}, f"{new}://b/")

    if allowed:
        assert follow().full_url == f"{new}://b/"
    else:
        with pytest.raises(OSError, match="which is not trusted"):
            follow()


@pytest.mark.parametrize("what", ["huge length", "endless 416", "a long reason", "no HTTP", "redirect to itself"])
def test_the_command_line_says_it_in_one_sentence(tmp_path, what):
    answer, _ = ATTACKS[what]
    with raw_server(answer) as server:
        environment = {"HF_ENDPOINT": server.url, "MINICAIT_OFFICIAL": server.url, "MINICAIT_CACHE": str(tmp_path)}
        refused("weights", "get", "cait_xxs24_224", because="could not download", environment=environment)
