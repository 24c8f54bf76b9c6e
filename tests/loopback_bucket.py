"""A bucket on loopback: Google's storage API as gcp-storage-emulator serves it, behind a proxy that is slow and fails.

Run as a program, it prints its port, and serves until its standard input ends. The faults of the proxy
are set, and read, at /-/faults.
"""

import contextlib
import http.client
import json
import logging
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import quote

BUCKET = "bucket"
# Where a request fails: refused, cut before it was heard, or with its answer lost or cut in the middle.
KINDS = ("429", "503", "reset", "lost", "cut")
OWN = {"connection", "transfer-encoding", "content-length", "date", "server"}


class Faults:
    """What goes wrong, and how often it did."""

    def __init__(self):
        self.lock, self.dice, self.counts = threading.Lock(), random.Random(0), Counter()
        # Share of requests that fail, and that hang; for how many seconds; what they are about.
        self.settings = {"fail": 0.0, "hang": 0.0, "hang_seconds": 5.0, "only": ""}

    def change(self, settings: dict) -> None:
        """Change what goes wrong; from here on it is the same whatever was asked for before."""
        if settings:
            self.settings |= settings
            self.dice = random.Random(4)  # where one in fifty hangs, the fourth request does

    def draw(self, path: str) -> str | None:
        """Return what goes wrong with a request, None for nothing."""
        with self.lock:
            self.counts["requests"] += 1
            self.counts["records read"] += ".tfrecord?" in path and "/download/" in path
            dice, kind = self.dice.random(), self.dice.choice(KINDS)
            if self.settings["only"] not in path:
                return None
            hang = dice < self.settings["hang"]
            found = "hang" if hang else kind if dice < self.settings["hang"] + self.settings["fail"] else None
            self.counts[found or "well"] += 1
            return found


class Handler(BaseHTTPRequestHandler):
    """Serves requests on connections that can break, and says nothing."""

    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def log_message(self, *arguments: object) -> None:
        pass

    def reset(self) -> None:
        """End the connection as one that breaks ends: with a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


class Proxy(Handler):
    """Passes requests on to the emulator, but for those that are to fail."""

    faults: Faults
    emulator: int

    def answer(self, status: int, body: bytes, headers: list[tuple[str, str]] = ()) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = iter(lambda: self.rfile.read(int(self.rfile.readline(), 16)), b"")
            return b"".join(part for part in parts if self.rfile.readline() or True)
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionResetError("the client is gone")
        return body

    def forward(self, body: bytes) -> tuple[int, bytes, list[tuple[str, str]]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.emulator)
        connection.request(self.command, self.path, body, dict(self.headers) | {"Content-Length": str(len(body))})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content, [header for header in answer.getheaders() if header[0].lower() not in OWN]

    def handle_any(self) -> None:
        try:
            body = self.body()
            if self.path == "/-/faults":
                self.faults.change(json.loads(body or b"{}"))
                self.answer(200, json.dumps(dict(self.faults.counts)).encode())
                return
            settings, fault = self.faults.settings, self.faults.draw(self.path)
            if fault in ("429", "503"):
                self.answer(int(fault), b'{"error": {"code": %s, "message": "made up"}}' % fault.encode())
                return
            if fault in ("reset", "hang"):
                time.sleep(settings["hang_seconds"] if fault == "hang" else 0)
                self.reset()
                return
            status, content, headers = self.forward(body)
            if fault == "cut" and len(content) > 1:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
            if fault:
                self.reset()
                return
            if self.command == "GET" and ("/download/" in self.path or "alt=media" in self.path):
                extension = self.path.partition("?")[0].rpartition(".")[2]
                self.faults.counts[f"bytes of .{extension}"] += len(content)
            self.answer(status, content, headers)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = handle_any


class Server(ThreadingHTTPServer):
    """The proxy's server; a connection that was cut on purpose is no news."""

    daemon_threads, request_queue_size = True, 128

    def handle_error(self, request: object, address: object) -> None:
        """Say nothing."""


def serve() -> None:
    """Serve emulator and proxy until the process that started this one is gone."""
    from gcp_storage_emulator.server import RequestHandler, create_server

    logging.disable()
    RequestHandler.disable_nagle_algorithm = True  # it sends head and body by themselves
    emulator = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    emulator.start()
    # It lets five connections wait; the next one would begin after a second.
    emulator._api._httpd.socket.listen(128)
    Proxy.faults, Proxy.emulator = Faults(), emulator._api._httpd.server_address[1]
    proxy = Server(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    print(proxy.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)


class Bucket:
    """A served bucket, from the outside."""

    def __init__(self, port: int):
        self.url, self.waited = f"http://127.0.0.1:{port}", []

    def faults(self, **settings: object) -> Counter:
        """Change what goes wrong (see `Faults`); return what has been done so far."""
        request = urllib.request.Request(f"{self.url}/-/faults", json.dumps(settings).encode(), method="POST")
        return Counter(json.loads(urllib.request.urlopen(request, timeout=6000).read()))

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return the content of every object by name."""
        listed = json.loads(self.get(f"/storage/v1/b/{BUCKET}/o?prefix={prefix}"))
        return {item["name"]: self.get(f"/{BUCKET}/{item['name']}") for item in listed.get("items", [])}

    def get(self, path: str) -> bytes:
        return urllib.request.urlopen(self.url + path, timeout=600).read()

    def put(self, name: str, content: bytes) -> None:
        request = urllib.request.Request(f"{self.url}/{BUCKET}/{name}", content, method="PUT")
        urllib.request.urlopen(request, timeout=600).read()

    def delete(self, name: str) -> None:
        request = urllib.request.Request(f"{self.url}/storage/v1/b/{BUCKET}/o/{quote(name, '')}", method="DELETE")
        urllib.request.urlopen(request, timeout=600).read()


@contextlib.contextmanager
def in_place_of_google() -> Iterator[Bucket]:
    """Serve a bucket where this process and its children look for Google's; here attempts do not wait, see `waited`."""
    import gcsfs.retry
    import pytest
    from tpulm.core import bucket

    with served() as found, pytest.MonkeyPatch.context() as patch:

        async def sleep(seconds: float) -> None:
            found.waited.append(seconds)

        patch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=sleep))
        patch.setenv("STORAGE_EMULATOR_HOST", found.url)
        patch.setenv("SNAKEMAKE_STORAGE_GCS_PROJECT", "project")
        bucket.file_system.cache_clear()
        yield found
    bucket.file_system.cache_clear()


@contextlib.contextmanager
def served() -> Iterator[Bucket]:
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Bucket(int(process.stdout.readline()))


if __name__ == "__main__":
    serve()
