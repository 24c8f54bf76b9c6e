"""A server for a person at this machine: on 127.0.0.1, at addresses with a token that nobody can guess.

It answers nothing else: no other path, no host's name but this machine's, and to POST only JSON that a page of its own
has sent.
"""

import secrets
import sys
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tpulm.core.errors import UserError

LARGEST = 200_000  # bytes of what is sent to it
UNREAD = 50 * LARGEST  # of what is too large, read and thrown away
SILENT = 60.0  # seconds after which a connection is closed that sends nothing
HOSTS = ("127.0.0.1", "localhost")  # also at the end of a tunnel
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Answer(NamedTuple):
    """What is sent back: the type of the content, the content, part by part as it comes, and the status of HTTP."""

    kind: str = "text/plain; charset=utf-8"
    parts: Iterable[str] = ()
    status: int = 200


# Of a path behind the token, the query behind it, and what was sent, None with GET; None where there is no such path.
Respond = Callable[[str, str, bytes | None], Answer | None]


def handler(token: str, respond: Respond) -> type[BaseHTTPRequestHandler]:
    """Return the handler of requests to addresses with the token."""

    class Handler(BaseHTTPRequestHandler):
        """Answers GET and POST."""

        timeout = SILENT

        def do_GET(self) -> None:  # noqa: N802 (the name that the library calls)
            """Answer."""
            if (place := self.place()) is not None:
                self.answer(respond(*place, None))

        def do_POST(self) -> None:  # noqa: N802
            """Answer, where it may be from the page."""
            place, given = self.place(), self.headers.get("Content-Length", "")
            if place is None:
                return
            # Pages of other origins can send plain text without asking, but no JSON.
            if self.headers.get("Content-Type") != "application/json" or not given.isdecimal():
                self.send_error(415)
            elif int(given) > LARGEST:
                self.rfile.read(min(int(given), UNREAD))  # or the connection would break before the answer
                self.send_error(413)
            else:
                self.answer(respond(*place, self.rfile.read(int(given))))

        def place(self) -> tuple[str, str] | None:
            """Return the path behind the token, and the query; None, after an answer, where it is not the right one."""
            try:
                address, host = urlsplit(self.path), urlsplit(f"//{self.headers.get('Host', '')}").hostname
            except ValueError:  # no address, such as http://[::1/
                self.send_error(404)
                return None
            given, *rest = address.path.removeprefix("/").split("/")
            if host in HOSTS and rest and secrets.compare_digest(given.encode(), token.encode()):
                return "/".join(rest), address.query
            self.send_error(404)
            return None

        def answer(self, found: Answer | None) -> None:
            """Send what `respond` returned."""
            if found is None or found.status != 200:
                self.send_error(404 if found is None else found.status)
                return
            self.send_response(200)
            for name, value in (
                ("Content-Type", found.kind),
                ("Cache-Control", "no-store"),
                ("Content-Security-Policy", POLICY),
                ("Referrer-Policy", "no-referrer"),
                ("X-Content-Type-Options", "nosniff"),
            ):
                self.send_header(name, value)
            self.end_headers()
            for part in found.parts:
                self.wfile.write(part.encode())
                self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: the token is in every address."""

    return Handler


class Server(ThreadingHTTPServer):
    """A thread for each request; those that are open do not keep the program from ending."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a reader that has gone."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def serve(respond: Respond, port: int) -> tuple[Server, str]:
    """Return a server that answers once it runs, and the address of its page.

    port  0 is any that is free. Raises UserError where it is not available.
    """
    token = secrets.token_urlsafe(24)
    try:
        server = Server(("127.0.0.1", port), handler(token, respond))
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port} is not available: {error}; omit it to use a free port.") from None
    return server, f"http://127.0.0.1:{server.server_port}/{token}/"
