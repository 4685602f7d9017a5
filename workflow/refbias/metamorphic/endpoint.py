"""Models behind an OpenAI-compatible interface: several requests at once, patience, a budget, nothing asked twice.

Every answer is written to a cache as soon as it has come, under a hash of all that it depends on, so a run that was
stopped, by a budget, a refused key or a kill, goes on with what is left. Only the standard library is used; a redirect
is refused, since it would carry the key to another host, and the key appears in no message.
"""

import contextlib
import email.utils
import hashlib
import http.client
import json
import logging
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from refbias.artifacts import write_json
from refbias.benchmarks.base import Message
from refbias.config.metamorphic import EndpointSettings
from refbias.errors import UserError, printable

LOG = logging.getLogger(__name__)
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
LONGEST_ASKED_WAIT_S = 900.0
"""A longer ``Retry-After`` is a quota of the day, which no job should sit out."""
_PASSING = (408, 409, 425, 429)
_BYTES_A_TOKEN = 4
"""Taken where the service does not say how many tokens it used."""


@dataclass(frozen=True)
class Reply:
    """An answer; `finished` is false where the limit of tokens cut it off."""

    text: str
    finished: bool


class _Passing(Exception):  # noqa: N818 - no error yet: the next attempt may succeed
    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds that a header ``Retry-After`` asks for; None where it says nothing readable.

    Parameters
    ----------
    value
        Seconds, or a date.
    now
        Seconds since the epoch.
    """
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(value)
        return seconds if 0 <= seconds < float("inf") else None
    with contextlib.suppress(ValueError, TypeError, IndexError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    return None


class Endpoint:
    """One model of one service.

    Parameters
    ----------
    settings
        Address, model, patience and budget.
    cache
        Folder of the answers.
    max_new_tokens
        Tokens of an answer, at most.
    temperature
        0 = greedy; above it `seed` is sent too.
    seed
        Of the run.
    environment
        Where `settings.key_env` is looked up.
    first_wait_s
        Wait before the first repeat; doubled for each further one, with jitter.

    Raises
    ------
    UserError
        If the key's variable is not set.
    """

    def __init__(
        self,
        settings: EndpointSettings,
        *,
        cache: Path,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        environment: Mapping[str, str],
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        self.settings, self.cache = settings, cache
        self._url = f"{settings.base_url.rstrip('/')}/chat/completions"
        self._options: dict[str, Any] = {settings.token_key: max_new_tokens, "temperature": temperature}
        if temperature > 0:
            self._options["seed"] = seed
        self._key = ""
        if settings.key_env:
            self._key = environment.get(settings.key_env, "").strip()
            if not self._key:
                raise UserError(f"{settings.model}: no key: export {settings.key_env}, which key 'key_env' names")
        self._first_wait_s = first_wait_s
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._sent = self._tokens = self._retries = self._from_cache = self._asked = 0
        self._served: set[str] = set()
        # jitter spreads repeats; no result depends on it
        self._random = random.Random()  # noqa: S311

    # --- what is asked of it ------------------------------------------------------------------------------------------

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Return one reply a prompt, in order, as `refbias.metamorphic.judge` asks for."""
        return [reply.text for reply in self.chat([(Message("user", prompt),) for prompt in prompts])]

    def chat(self, conversations: Sequence[Sequence[Message]]) -> list[Reply]:
        """Return the next turn of every conversation, in order.

        Raises
        ------
        UserError
            If the key is refused, the request is, the budget is spent, or the service does not answer after all
            repeats; what was answered until then is kept.
        """
        bodies = [self._body(turns) for turns in conversations]
        keys = [self._name(body) for body in bodies]
        found: dict[str, Reply] = {}
        missing: dict[str, dict[str, Any]] = {}
        for key, body in zip(keys, bodies, strict=True):
            if key not in found and key not in missing:
                kept = self._kept(key)
                if kept is None:
                    missing[key] = body
                else:
                    found[key] = kept
        self._from_cache += len(found)
        self._ask_all(missing, found)
        return [found[key] for key in keys]

    def facts(self) -> dict[str, Any]:
        """Return what a manifest says of the service (JSON values)."""
        return {
            "endpoint": self.settings.outcome(),
            "served_models": sorted(self._served),
            "requests": self._sent,
            "repeats": self._retries,
            "tokens": self._tokens,
            "from_cache": self._from_cache,
        }

    # --- cache --------------------------------------------------------------------------------------------------------

    def _body(self, turns: Sequence[Message]) -> dict[str, Any]:
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        return {"model": self.settings.model, "messages": messages, **self._options}

    def _name(self, body: Mapping[str, Any]) -> str:
        content = json.dumps([self._url, body], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _path(self, key: str) -> Path:
        return self.cache / key[:2] / f"{key}.json"

    def _kept(self, key: str) -> Reply | None:
        try:
            row = json.loads(self._path(key).read_text(encoding="utf-8"))
            return Reply(str(row["text"]), bool(row["finished"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    # --- many at once -------------------------------------------------------------------------------------------------

    def _ask_all(self, missing: Mapping[str, dict[str, Any]], found: dict[str, Reply]) -> None:
        if not missing:
            return
        self._stop.clear()
        waiting = list(missing.items())
        lock = threading.Lock()

        def work() -> None:
            while not self._stop.is_set():
                with lock:
                    if not waiting:
                        return
                    key, body = waiting.pop(0)
                reply = self._patiently(body)
                write_json(self._path(key), {"text": reply.text, "finished": reply.finished})
                with lock:
                    found[key] = reply
                    self._asked += 1

        workers = min(self.settings.concurrency, len(missing))
        with ThreadPoolExecutor(max_workers=workers) as pool:
            futures = [pool.submit(work) for _ in range(workers)]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                # an error, or Ctrl-C: nobody sends a further request
                self._stop.set()
        for future in futures:
            future.result()

    def _patiently(self, body: Mapping[str, Any]) -> Reply:
        for attempt in range(self.settings.max_retries + 1):
            self._spend()
            try:
                return self._once(body)
            except _Passing as trouble:
                if attempt == self.settings.max_retries:
                    self._give_up(f"{trouble}, {attempt + 1} times: start again later")
                pause = min(LONGEST_WAIT_S, self._first_wait_s * 2**attempt) * self._random.uniform(0.5, 1.5)
                pause = max(pause, trouble.wait_s or 0.0)
                if pause > LONGEST_ASKED_WAIT_S:
                    self._give_up(f"{trouble}, and asks to wait {pause:.0f} s: start again then")
                LOG.warning("%s: %s; again in %.1f s", self.settings.model, trouble, pause)
                with self._lock:
                    self._retries += 1
                if self._stop.wait(pause):
                    self._give_up("stopped")
        raise AssertionError("unreachable")

    def _spend(self) -> None:
        """Take a request from the budget, or stop."""
        limits = self.settings
        with self._lock:
            if limits.max_requests is not None and self._sent >= limits.max_requests:
                self._give_up(f"budget of {limits.max_requests} requests is spent: raise key 'max_requests'")
            if limits.max_tokens is not None and self._tokens >= limits.max_tokens:
                self._give_up(f"budget of {limits.max_tokens} tokens is spent: raise key 'max_tokens'")
            self._sent += 1

    def _give_up(self, reason: str) -> NoReturn:
        self._stop.set()
        kept = f"; {self._asked} answers of this job are kept, the next one asks for the others alone"
        raise UserError(f"{self.settings.model}: {reason}{kept}")

    # --- one request --------------------------------------------------------------------------------------------------

    def _once(self, body: Mapping[str, Any]) -> Reply:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "refbias"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers, method="POST")  # noqa: S310
        try:
            with self._opener.open(request, timeout=self.settings.timeout_s) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            return self._refused(error)
        except (OSError, http.client.HTTPException) as error:
            # no route, reset, timeout, cut off in the middle
            reason = getattr(error, "reason", None) or error
            raise _Passing(f"no whole answer ({type(reason).__name__}: {self._safe(str(reason))})") from None
        return self._read(raw, body)

    def _refused(self, error: urllib.error.HTTPError) -> Reply:
        with error:
            try:
                text = error.read(4000).decode("utf-8", "replace")
            except (OSError, http.client.HTTPException):
                text = ""
        said = self._safe(" ".join(_message(text).split())[:200])
        if error.code in _PASSING or error.code >= 500:
            raise _Passing(
                f"HTTP {error.code} {said}".strip(), retry_after(error.headers.get("Retry-After"), time.time())
            )
        if "content_filter" in text:
            return Reply("", True)
        if error.code in (401, 403):
            named = f"check the key in {self.settings.key_env}" if self._key else "set key 'key_env'"
            self._give_up(f"HTTP {error.code}, the key is refused: {named} ({said})")
        self._give_up(f"HTTP {error.code} from {self._url}: {said}: check keys 'base_url', 'model' and 'token_key'")

    def _read(self, raw: bytes, body: Mapping[str, Any]) -> Reply:
        try:
            answer = json.loads(raw)
            choice = answer["choices"][0]
            content = choice["message"].get("content")
            finish = choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise _Passing(f"an answer that is no chat completion ({len(raw)} bytes)") from None
        text = content if isinstance(content, str) else str(choice["message"].get("refusal") or "")
        usage = answer.get("usage")
        used = usage.get("total_tokens") if isinstance(usage, dict) else None
        if not isinstance(used, int) or used < 0:
            used = (len(json.dumps(body)) + len(text.encode())) // _BYTES_A_TOKEN
        with self._lock:
            self._tokens += used
            self._served.add(str(answer.get("model", "")))
        return Reply(text, finish != "length")

    def _safe(self, text: str) -> str:
        """Return what a service said as a message may hold it: without the key, without control characters."""
        return printable(text.replace(self._key, "***") if self._key else text)


def _message(text: str) -> str:
    """Return what the body of an error says."""
    try:
        error = json.loads(text)["error"]
    except (ValueError, LookupError, TypeError):
        return text
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
