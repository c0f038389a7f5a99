"""Serve S3 on this machine, in memory, until standard input ends. Print the port.

One request at a time: an object that may be created once is created once.
"""

import sys
import threading

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class QuietHandler(WSGIRequestHandler):
    """Logs nothing."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Skip a line per request."""


server = make_server(
    "127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), request_handler=QuietHandler
)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
