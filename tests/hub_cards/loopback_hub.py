"""A Hub on this machine for tests: huggingface_hub's own client uploads to it and downloads from it over HTTP.

Two servers on 127.0.0.1: the Hub, and its object storage, which has another address as on the real Hub and refuses
requests that carry a token. Everything is kept in memory. `fail_next` makes the next requests fail. huggingface_hub comes with no
server to test against, and one that records answers cannot break a connection or tell what a second request would find.
"""

from __future__ import annotations

import re
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from .hub_repositories import MAIN, Repository
from .hub_routes import ROLES, Answer, Refusal, Request, answer

# What a request is for, as patterns for `fail_next` and `count`.
CREATE, WHOAMI, PREUPLOAD, COMMIT = r"/api/repos/create", r"/api/whoami-v2", r"/preupload/", r"/commit/"
LARGE_BATCH, LARGE_OBJECT, LARGE_VERIFY = r"/lfs/objects/batch", r"^/objects/", r"/api/verify-object"
CARD = r"/api/validate-yaml"
RESOLVE, INFO, TREE = r"/resolve/", r"^/api/models/[^/]+/[^/?]+(/revision/|$|\?)", r"/tree/"
BAD_TOKEN = "Invalid credentials in Authorization header"
MESSAGES = {
    401: BAD_TOKEN,
    403: "Forbidden: you don't have the rights for this",
    409: "Conflict: another change is being made",
    429: "Too many requests",
    500: "Internal Server Error",
}


class Cut(Enum):
    """Where the connection breaks."""

    UPLOAD = "in the middle of what the client sends: nothing is done"
    ANSWER = "in the middle of the answer: what was asked is done, but the client cannot know"


@dataclass
class LoggedRequest:
    """One request that arrived; `status` is the answer's, or None where the connection was cut."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int | None = None


@dataclass
class _Fault:
    method: str
    pattern: re.Pattern
    answer: Answer | Cut
    times: int


class LoopbackHub:
    """The Hub's state, its two servers and its faults; a context manager.

    Attributes:
        large_from: files of more bytes go to the object storage (and those with the usual endings, and binary ones).
        page_size: rows a page of a list.
        repositories: (kind, repo_id) → Repository, kind as "models".
        objects: SHA-256 → content.
        requests: every request, in order.
    """

    def __init__(self, large_from: int = 20_000, page_size: int = 1000) -> None:
        self.large_from, self.page_size = large_from, page_size
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[LoggedRequest] = []
        self._faults: list[_Fault] = []
        self._lock = threading.RLock()
        self._servers = [_Server(self, storage=False), _Server(self, storage=True)]
        self.endpoint, self.storage_endpoint = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def __enter__(self) -> LoopbackHub:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def repository(self, repo_id: str, kind: str = "models") -> Repository:
        return self.repositories[kind, repo_id]

    def commits(self, repo_id: str, revision: str = MAIN) -> list[str]:
        """Titles of a branch's commits, oldest first; the first one is the Hub's own."""
        return [commit.title for commit in reversed(self.repository(repo_id).history(revision))]

    def fail_next(
        self, method: str, path_regex: str, answer: int | Answer | Cut, times: int = 1, retry_after: int | None = None
    ) -> None:
        """Lets the next `times` requests of this method whose path and query hold the pattern fail.

        `answer` is a status, a whole Answer, or where the connection is cut. `retry_after` (seconds) is sent with a
        status. Faults that fit the same request are used up in the order in which they were given.
        """
        if isinstance(answer, int):
            message = MESSAGES.get(answer, "fault")
            headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
            answer = Refusal(answer, message, **headers).answer
        self._faults.append(_Fault(method, re.compile(path_regex), answer, times))

    def count(self, method: str, path_regex: str) -> int:
        """Requests so far, failed ones too."""
        return len(self.statuses(method, path_regex))

    def statuses(self, method: str, path_regex: str) -> list[int | None]:
        """The answers' statuses to such requests, in order; None where the connection was cut."""
        return [row.status for row in self.requests if row.method == method and re.search(path_regex, row.path)]

    @property
    def unused_faults(self) -> int:
        """Failures that were ordered and never met: a test that leaves some has not tested what it says."""
        return sum(fault.times for fault in self._faults)

    def _take_fault(self, method: str, path: str) -> Answer | Cut | None:
        with self._lock:
            for fault in self._faults:
                if fault.times and fault.method == method and fault.pattern.search(path):
                    fault.times -= 1
                    return fault.answer
        return None

    def _log(self, row: LoggedRequest) -> None:
        with self._lock:
            self.requests.append(row)

    def _answer(self, request: Request, storage: bool) -> Answer:
        """The token is judged before anything else; the storage takes none."""
        credentials = request.headers.get("Authorization")
        if storage and (credentials is not None or not request.path.startswith("/objects/")):
            return Refusal(400, "the object storage serves /objects/ and wants no token").answer
        if credentials is not None:
            request.role = ROLES.get(credentials.removeprefix("Bearer "))
            if request.role is None:
                return Refusal(401, BAD_TOKEN).answer
        with self._lock:
            return answer(self, request)


class _Server(ThreadingHTTPServer):
    # A client that keeps its connection open must not keep the test from ending.
    daemon_threads, block_on_close = True, False

    def __init__(self, hub: LoopbackHub, storage: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub, self.storage = hub, storage

    def handle_error(self, request: socket.socket, client_address: tuple) -> None:
        """A client may break its connection; anything else is a fault of these files and is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def handle_request(self) -> None:
        hub = self.server.hub
        path, _, query = self.path.partition("?")
        fault = hub._take_fault(self.command, self.path)
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size // 2 if fault is Cut.UPLOAD else size)
        row = LoggedRequest(self.command, self.path, dict(self.headers.items()), body)
        hub._log(row)
        if fault is Cut.UPLOAD:
            return self.break_connection()
        if isinstance(fault, Answer):
            reply = fault
        else:
            reply = hub._answer(Request(self.command, path, query, self.headers, body), self.server.storage)
        row.status = None if fault is Cut.ANSWER else reply.status
        self.send(reply, cut=fault is Cut.ANSWER)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request

    def send(self, reply: Answer, cut: bool) -> None:
        body = reply.body
        self.send_response(reply.status)
        headers = {"Content-Type": "application/json", **reply.headers, "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.wfile.flush()
        if cut:
            self.close_connection = True

    def break_connection(self) -> None:
        """Closes at once and without the usual farewell, as a line that drops does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        """The log is `LoopbackHub.requests`; nothing goes to the terminal."""
