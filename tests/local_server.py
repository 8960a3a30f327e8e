"""Servers on this machine, which can do what the servers of the world do to downloads."""

import hashlib
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files` by path. `cut` ends answers early, `ranges` allows resuming, `log` keeps what was asked."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.redirects = {}
        self.headers = {}
        self.cut = None
        self.ranges = True
        self.tags = True
        self.log = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.log.append((self.path, asked))
        if self.path in server.redirects:
            target, headers = server.redirects[self.path]
            self.send_response(302)
            for name, value in {"Location": server.url + target, "Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        content = server.files[self.path]
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        resume = asked and server.ranges and self.headers.get("If-Range") in (None, tag)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if resume else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if resume else 200)
        if server.tags:
            self.send_header("ETag", tag)
        if resume:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        end = len(content) if server.cut is None else min(len(content), start + server.cut)
        self.wfile.write(content[start:end])

    def log_message(self, *args): ...


@contextmanager
def local_server():
    with Server() as running:
        looks = {"poll_interval": 0.01}  # for shutdown; every half second would make for slow tests
        thread = threading.Thread(target=running.serve_forever, kwargs=looks, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class RawServer:
    """Sends bytes that may be no HTTP: `answer()` returns the chunks for one connection, endless ones until it ends."""

    def __init__(self, answer):
        self.answer = answer
        self.requests = []
        self.sent = 0  # bytes
        self.stopped = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        with suppress(OSError):  # it was closed
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(OSError):  # the client has enough
                    self._answer(connection)

    def _answer(self, connection):
        connection.settimeout(5)
        request = b""
        while b"\r\n\r\n" not in request:
            request += (received := connection.recv(65536))
            if not received:
                return
        self.requests.append(request)
        for chunk in self.answer():
            if self.stopped.is_set():
                return
            connection.sendall(chunk)
            self.sent += len(chunk)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):  # a reset would overtake what was sent
            pass

    def close(self):
        self.stopped.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@contextmanager
def raw_server(answer):
    server = RawServer(answer)
    try:
        yield server
    finally:
        server.close()
