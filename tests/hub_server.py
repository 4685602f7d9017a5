"""A small server that stands in for the hub and for any file server, with faults to order.

It answers the routes that the hub's client asks: what a revision is, the tree of a commit, and a file's
head and body with ranges. A file of more than `LARGE` bytes is named by its SHA-256, as the hub does for
large files, any other by its git hash.
"""

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pytest

LARGE = 1000
COMMIT = "0123456789abcdef0123456789abcdef01234567"
API = re.compile(r"/api/(?P<type>models|datasets)/(?P<id>[^/]+/[^/]+)/(?P<what>revision|tree)/(?P<revision>[^/]+)")
FILE = re.compile(r"/(?:datasets/)?(?P<id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")


def ask_only(server: "HubServer", folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's client and the downloads ask this server alone, with empty caches in `folder` and no token."""
    import huggingface_hub
    from huggingface_hub import constants

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("REFBIAS_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    # a client of an earlier test knows other proxies
    huggingface_hub.close_session()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class HubServer:
    """Repositories (id -> name -> bytes) and plain files (path -> bytes), served on this machine.

    `gated` maps an id to the token that opens it. `cuts` maps a name to the number of transfers that
    end half-way, counted down; `stuck` holds names whose transfers never get beyond the half. `busy`
    counts down requests that are answered by 503. `tampered` names files that are sent with other bytes
    than the hub states.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    plain: dict[str, bytes] = field(default_factory=dict)
    gated: dict[str, str] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    tampered: set[str] = field(default_factory=set)
    knows_ranges: bool = True
    busy: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self, body=True)

            def do_HEAD(self) -> None:
                server.answer(self, body=False)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def bodies(self) -> int:
        """Number of transfers of files that were asked for."""
        return sum(method == "GET" and not path.startswith("/api/") for method, path in self.requests)

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        self.requests.append((request.command, path))
        if self.busy:
            self.busy -= 1
            return self._refuse(request, 503, "")
        if path in self.plain:
            return self._send(request, path, self.plain[path], body, {})
        if match := API.fullmatch(path):
            return self._api(request, match)
        if match := FILE.fullmatch(path):
            return self._file(request, match, body)
        return self._refuse(request, 404, "RepoNotFound")

    def _known(self, request: BaseHTTPRequestHandler, match: re.Match[str]) -> dict[str, bytes] | None:
        repo = self.repos.get(match["id"])
        if repo is None:
            self._refuse(request, 404, "RepoNotFound")
        elif match["revision"] not in ("main", COMMIT):
            self._refuse(request, 404, "RevisionNotFound")
            return None
        return repo

    def _api(self, request: BaseHTTPRequestHandler, match: re.Match[str]) -> None:
        repo = self._known(request, match)
        if repo is None:
            return
        if match["what"] == "revision":
            gated: Any = "manual" if match["id"] in self.gated else False
            self._json(request, {"id": match["id"], "sha": COMMIT, "gated": gated, "siblings": [], "tags": []})
            return
        entries = []
        for name, data in repo.items():
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": self._git(data)}
            if len(data) > LARGE:
                entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        self._json(request, entries)

    def _file(self, request: BaseHTTPRequestHandler, match: re.Match[str], body: bool) -> None:
        repo = self._known(request, match)
        if repo is None:
            return
        token = self.gated.get(match["id"])
        if token is not None and request.headers.get("Authorization") != f"Bearer {token}":
            return self._refuse(request, 403 if "Authorization" in request.headers else 401, "GatedRepo")
        data = repo.get(match["name"])
        if data is None:
            return self._refuse(request, 404, "EntryNotFound")
        etag = sha256(data) if len(data) > LARGE else self._git(data)
        if match["name"] in self.tampered:
            data = bytes(reversed(data))
        self._send(request, match["name"], data, body, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})

    @staticmethod
    def _git(data: bytes) -> str:
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    def _send(
        self, request: BaseHTTPRequestHandler, name: str, data: bytes, body: bool, headers: dict[str, str]
    ) -> None:
        start = 0
        if (wanted := request.headers.get("Range")) and self.knows_ranges:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            if start > len(data):
                return self._refuse(request, 416, "")
        request.send_response(206 if start else 200)
        for key, value in headers.items():
            request.send_header(key, value)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        if not body:
            return None
        end = len(data)
        if name in self.stuck:
            end = max(start, len(data) // 2)
        elif self.cuts.get(name, 0):
            self.cuts[name] -= 1
            end = start + (len(data) - start) // 2
        request.wfile.write(data[start:end])
        request.close_connection = True
        return None

    @staticmethod
    def _refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        request.send_response(status)
        if code:
            request.send_header("X-Error-Code", code)
        request.send_header("Content-Length", "0")
        request.end_headers()

    @staticmethod
    def _json(request: BaseHTTPRequestHandler, value: Any) -> None:
        data = json.dumps(value).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)
