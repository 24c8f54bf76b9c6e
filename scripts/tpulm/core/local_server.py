"""An HTTP server for the user of this machine: on 127.0.0.1, at addresses with a secret token.

It does not answer other paths, other host names, or a POST of anything but JSON from its own page.
"""

import secrets
import sys
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tpulm.core.errors import UserError

LARGEST = 200_000  # bytes of a request's body
UNREAD = 50 * LARGEST  # bytes of a larger body that are read and dropped
SILENT = 60.0  # seconds after which a silent connection is closed
HOSTS = ("127.0.0.1", "localhost")  # also at the end of a tunnel
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Answer(NamedTuple):
    """An answer: the type of the content, its parts as they are generated, and the status of HTTP."""

    kind: str = "text/plain; charset=utf-8"
    parts: Iterable[str] = ()
    status: int = 200


# Returns the answer, given the path after the token, the query, and the body, None with GET; None for an unknown path.
Respond = Callable[[str, str, bytes | None], Answer | None]


def handler(token: str, respond: Respond) -> type[BaseHTTPRequestHandler]:
    """Return the handler of requests to addresses with the token."""

    class Handler(BaseHTTPRequestHandler):
        """Answers GET and POST."""

        timeout = SILENT

        def do_GET(self) -> None:  # noqa: N802 (the name that the library calls)
            """Answer a request for a page."""
            if (place := self.place()) is not None:
                self.answer(respond(*place, None))

        def do_POST(self) -> None:  # noqa: N802
            """Answer a request with a JSON body."""
            place, length = self.place(), self.headers.get("Content-Length", "")
            if place is None:
                return
            # Pages of other origins can send plain text without asking, but no JSON.
            if self.headers.get("Content-Type") != "application/json" or not length.isdecimal():
                self.send_error(415)
            elif int(length) > LARGEST:
                self.rfile.read(min(int(length), UNREAD))  # or the connection would break before the answer
                self.send_error(413)
            else:
                self.answer(respond(*place, self.rfile.read(int(length))))

        def place(self) -> tuple[str, str] | None:
            """Return the path after the token, and the query; None, after an error was sent, for a wrong address."""
            try:
                address, host = urlsplit(self.path), urlsplit(f"//{self.headers.get('Host', '')}").hostname
            except ValueError:  # no address, such as http://[::1/
                self.send_error(404)
                return None
            sent_token, *rest = address.path.removeprefix("/").split("/")
            if host in HOSTS and rest and secrets.compare_digest(sent_token.encode(), token.encode()):
                return "/".join(rest), address.query
            self.send_error(404)
            return None

        def answer(self, reply: Answer | None) -> None:
            """Send the result of `respond`."""
            if reply is None or reply.status != 200:
                self.send_error(404 if reply is None else reply.status)
                return
            self.send_response(200)
            for name, value in (
                ("Content-Type", reply.kind),
                ("Cache-Control", "no-store"),
                ("Content-Security-Policy", POLICY),
                ("Referrer-Policy", "no-referrer"),
                ("X-Content-Type-Options", "nosniff"),
            ):
                self.send_header(name, value)
            self.end_headers()
            for part in reply.parts:
                self.wfile.write(part.encode())
                self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: the token is in every address."""

    return Handler


class Server(ThreadingHTTPServer):
    """An HTTP server with a daemon thread for each request."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a closed connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def serve(respond: Respond, port: int) -> tuple[Server, str]:
    """Return a server, which answers once it runs, and the address of its page.

    port  0 for any free port. Raises UserError if it is not available.
    """
    token = secrets.token_urlsafe(24)
    try:
        server = Server(("127.0.0.1", port), handler(token, respond))
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port} is not available: {error}; omit it to use a free port.") from None
    return server, f"http://127.0.0.1:{server.server_port}/{token}/"
