"""A small server that stands in for an OpenAI-compatible service, with faults to order."""

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass
class ChatServer:
    """Answers ``echo: <last user text>``.

    `faults` are served first, one a request: a number is an HTTP status; ``(status, headers)`` too; ``cut`` states a
    longer body than it sends; ``garbage`` is no JSON; ``hang`` never answers in time; ``shape`` is other JSON.
    `key` is the only one that opens it. `says` ends the message of a status. `slow_s` is how long each answer takes.
    """

    faults: list[Any] = field(default_factory=list)
    key: str = ""
    slow_s: float = 0.0
    usage: bool = True
    finish: str = "stop"
    says: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    most_at_once: int = 0
    answered: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> Self:
        server = self
        self._lock = threading.Lock()
        self._now = 0

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self.asked.append({"path": handler.path, **body})
            self.times.append(time.monotonic())
            fault = self.faults.pop(0) if self.faults else None
        if self.slow_s:
            time.sleep(self.slow_s)
        if self.key and handler.headers.get("Authorization") != f"Bearer {self.key}":
            fault = 401
        # before the last byte leaves: the client may send its next request at once
        with self._lock:
            self._now -= 1
        self._send(handler, fault, body)

    def _send(self, handler: BaseHTTPRequestHandler, fault: Any, body: dict[str, Any]) -> None:
        if fault == "hang":
            time.sleep(1.0)
            return
        status, headers = fault if isinstance(fault, tuple) else (fault if isinstance(fault, int) else 200, {})
        text = body["messages"][-1]["content"]
        if status != 200:
            given = handler.headers.get("Authorization", "")
            data = json.dumps({"error": {"message": f"fault {status} for {given}{self.says}"}}).encode()
        elif fault == "garbage":
            data = b"<html>busy</html>"
        elif fault == "shape":
            data = b'{"choices": []}'
        else:
            choice = {"message": {"role": "assistant", "content": f"echo: {text}"}, "finish_reason": self.finish}
            answer: dict[str, Any] = {"model": "served", "choices": [choice]}
            if self.usage:
                answer["usage"] = {"total_tokens": 10}
            data = json.dumps(answer).encode()
            if fault is None:
                with self._lock:
                    self.answered[text] += 1
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data) + (1000 if fault == "cut" else 0)))
        handler.end_headers()
        handler.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
