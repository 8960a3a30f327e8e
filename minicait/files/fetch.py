"""An HTTP request that ends, whatever the server does.

A socket's timeout starts anew with each byte, and http.client waits as long as a server says "100 Continue". So a
watchdog ends the connection unless enough of the file arrives in every WINDOW, headers and redirects included: a file
of n bytes takes at most n / LEAST + 3 windows after the last redirect.
"""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.request
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

TIMEOUT = 30  # seconds without any data
WINDOW = 60  # seconds, in each of which
LEAST = 60_000  # bytes of the file must arrive: a kilobyte per second; then 2.5 GB take four weeks


class Watchdog:
    """A context in which connections are shut down when less than LEAST arrives in a WINDOW; then it raises OSError."""

    def __init__(self) -> None:
        self.arrived = 0  # bytes of the file, counted by the caller
        self.too_slow = False
        self._socket: socket.socket | None = None  # of the last connection
        self._before: int | None = None  # bytes at the start of this window
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def watch(self, connected: socket.socket) -> None:
        """Watch this connection; the one before ends, because only redirects make a second."""
        self._end()
        self._before = None  # the clock starts now
        self._socket = connected.dup()  # TLS would take over the original

    def _end(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it has ended by itself
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._finished.set()
        self._thread.join()
        self._end()
        if self.too_slow and (kind is None or issubclass(kind, Exception)):  # any other, such as Ctrl-C, goes on
            raise TimeoutError(f"the server is too slow: less than {LEAST:,} bytes arrived in {WINDOW} seconds")

    def _run(self) -> None:
        while not self._finished.wait(WINDOW):
            if self._before is not None and self.arrived < self._before + LEAST:
                self.too_slow = True
                self._end()
            self._before = self.arrived if self._socket is not None else None  # connecting has a limit of its own


class _Connection(http.client.HTTPConnection):
    watchdog: Watchdog

    def connect(self) -> None:
        super().connect()
        self.watchdog.watch(self.sock)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """HTTPSConnection.connect calls _Connection's before it begins with TLS."""


class _Handler(urllib.request.AbstractHTTPHandler):
    def __init__(self, watchdog: Watchdog) -> None:
        super().__init__()
        self.watchdog = watchdog
        self.answer: http.client.HTTPResponse | None = None  # the last one

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(_Connection, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(_SecureConnection, request)

    def _open(self, kind: type[_Connection], request: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> _Connection:
            made = kind(host, **options)
            made.watchdog = self.watchdog
            return made

        self.answer = self.do_open(connection, request)
        return self.answer

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows at most ten redirects, to http and https only, and never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        fp.close()  # or urllib would read all of it into memory
        if urlsplit(newurl).scheme not in ("https", urlsplit(req.full_url).scheme):
            raise OSError(f"it redirects to {newurl}, which is not trusted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_url(request: urllib.request.Request, watchdog: Watchdog, redirects: Redirects) -> http.client.HTTPResponse:
    """Send a request and return the answer, its body unread. Proxies are those of the environment."""
    opener = urllib.request.OpenerDirector()  # build_opener would add ftp: and file:
    http_handler = _Handler(watchdog)
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        redirects,
        http_handler,
    ):
        opener.add_handler(handler)
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT)
    except BaseException:
        if http_handler.answer is not None:
            http_handler.answer.close()
        raise
    return answer
