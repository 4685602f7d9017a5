"""The interface against a local server: faults, patience, budget, cache, concurrency."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refbias.benchmarks.base import Message
from refbias.config.base import parse
from refbias.config.metamorphic import EndpointSettings
from refbias.errors import UserError
from refbias.metamorphic.endpoint import Endpoint, Reply, retry_after
from tests.chat_server import ChatServer

KEY = "sk-very-secret"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


def endpoint(server: ChatServer, cache: Path, temperature: float = 0.0, **changes: Any) -> Endpoint:
    data = {"base_url": server.url, "model": "m", "concurrency": 1, "timeout_s": 20, "max_retries": 3, **changes}
    settings = parse(EndpointSettings, data, "endpoint")
    return Endpoint(
        settings,
        cache=cache,
        max_new_tokens=7,
        temperature=temperature,
        seed=3,
        environment={"THE_KEY": KEY},
        first_wait_s=0.02,
    )


def test_a_reply_a_prompt_in_order(server: ChatServer, tmp_path: Path) -> None:
    service = endpoint(server, tmp_path, concurrency=4)
    prompts = [f"p{number}" for number in range(20)]
    assert service.complete(prompts) == [f"echo: {prompt}" for prompt in prompts]
    first = server.asked[0]
    assert first["path"] == "/v1/chat/completions"
    assert {key: first[key] for key in ("model", "max_tokens", "temperature")} == {
        "model": "m",
        "max_tokens": 7,
        "temperature": 0.0,
    }
    assert "seed" not in first
    assert service.facts()["served_models"] == ["served"]
    assert service.facts()["tokens"] == 200


def test_turns_are_sent_as_they_are(server: ChatServer, tmp_path: Path) -> None:
    turns = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    server.finish = "length"
    service = endpoint(server, tmp_path, temperature=0.5, **{"token_key": "max_completion_tokens"})
    assert service.chat([turns]) == [Reply("echo: c", False)]
    sent = server.asked[0]
    assert sent["messages"] == [{"role": turn.role, "content": turn.content} for turn in turns]
    assert (sent["max_completion_tokens"], sent["seed"]) == (7, 3)


@pytest.mark.parametrize("fault", [429, 500, 503, 408, "cut", "garbage", "shape"])
def test_a_passing_fault_is_repeated(server: ChatServer, tmp_path: Path, fault: Any) -> None:
    server.faults = [fault]
    service = endpoint(server, tmp_path)
    assert service.complete(["p"]) == ["echo: p"]
    assert len(server.asked) == 2
    assert service.facts()["repeats"] == 1


def test_a_request_without_answer_is_repeated(server: ChatServer, tmp_path: Path) -> None:
    server.faults = ["hang"]
    assert endpoint(server, tmp_path, timeout_s=0.3).complete(["p"]) == ["echo: p"]
    assert len(server.asked) == 2


def test_waits_grow_and_retry_after_is_kept(server: ChatServer, tmp_path: Path) -> None:
    server.faults = [500, 500, 500]
    assert endpoint(server, tmp_path).complete(["p"]) == ["echo: p"]
    waits = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    # 0.02, 0.04, 0.08 with a jitter of a half
    assert all(pause >= 0.5 * 0.02 * 2**number for number, pause in enumerate(waits))
    server.faults = [(429, {"Retry-After": "0.4"})]
    start = time.monotonic()
    endpoint(server, tmp_path).complete(["q"])
    assert time.monotonic() - start >= 0.4


def test_retry_after_in_seconds_or_as_a_date() -> None:
    assert retry_after("3", 0.0) == 3.0
    assert retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 40.0) == 60.0
    assert retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 400.0) == 0.0
    for text in (None, "soon", "-1", "nan", "inf"):
        assert retry_after(text, 0.0) is None


def test_a_quota_of_the_day_is_not_sat_out(server: ChatServer, tmp_path: Path) -> None:
    server.faults = [(429, {"Retry-After": "86400"})]
    with pytest.raises(UserError, match="asks to wait 86400 s"):
        endpoint(server, tmp_path).complete(["p"])


def test_after_all_repeats_one_clear_line(server: ChatServer, tmp_path: Path) -> None:
    server.faults = [503] * 9
    with pytest.raises(UserError, match=r"m: HTTP 503 .*, 4 times: start again later; 0 answers") as caught:
        endpoint(server, tmp_path).complete(["p"])
    assert len(server.asked) == 4
    assert "\n" not in str(caught.value)


def test_a_wrong_key_stops_at_once_and_is_not_shown(server: ChatServer, tmp_path: Path) -> None:
    server.key = "another"
    service = endpoint(server, tmp_path, key_env="THE_KEY")
    with pytest.raises(UserError, match=r"401, the key is refused: check the key in THE_KEY") as caught:
        service.complete(["p", "q", "r"])
    assert len(server.asked) == 1
    assert KEY not in str(caught.value)


def test_a_right_key_opens_it_and_a_missing_one_is_named(server: ChatServer, tmp_path: Path) -> None:
    server.key = KEY
    assert endpoint(server, tmp_path, key_env="THE_KEY").complete(["p"]) == ["echo: p"]
    kept = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert KEY not in kept
    with pytest.raises(UserError, match="export ANOTHER_KEY"):
        endpoint(server, tmp_path, key_env="ANOTHER_KEY")
    with pytest.raises(UserError, match="401, the key is refused: set key 'key_env'"):
        endpoint(server, tmp_path).complete(["q"])


@pytest.mark.parametrize("status", [400, 404, 422, 302])
def test_a_refused_request_is_not_repeated(server: ChatServer, tmp_path: Path, status: int) -> None:
    server.faults = [(status, {"Location": "http://127.0.0.1:1/"})]
    with pytest.raises(UserError, match=rf"HTTP {status} from .*base_url"):
        endpoint(server, tmp_path).complete(["p"])
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [400, 503])
def test_no_control_character_of_a_service_reaches_a_message(
    server: ChatServer, tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.says = " \x1b]0;title\x07\x1b[2J end"
    server.faults = [status, status]
    with pytest.raises(UserError, match=f"HTTP {status} .*end") as caught:
        endpoint(server, tmp_path, max_retries=1).complete(["p"])
    assert str(caught.value).isprintable()
    assert [record for record in caplog.records if not record.getMessage().isprintable()] == []


def test_the_budget_of_requests_stops_and_the_next_job_goes_on(server: ChatServer, tmp_path: Path) -> None:
    prompts = [f"p{number}" for number in range(10)]
    with pytest.raises(UserError, match=r"budget of 4 requests is spent: .*; 4 answers of this job are kept"):
        endpoint(server, tmp_path, max_requests=4).complete(prompts)
    assert sum(server.answered.values()) == 4
    service = endpoint(server, tmp_path, max_requests=6, concurrency=3)
    assert service.complete(prompts) == [f"echo: {prompt}" for prompt in prompts]
    # nothing was asked twice
    assert server.answered == dict.fromkeys(prompts, 1)
    assert service.facts()["from_cache"] == 4
    again = endpoint(server, tmp_path, max_requests=1)
    assert again.complete(prompts) == [f"echo: {prompt}" for prompt in prompts]
    assert again.facts()["requests"] == 0


@pytest.mark.parametrize("usage", [True, False])
def test_the_budget_of_tokens(server: ChatServer, tmp_path: Path, usage: bool) -> None:
    server.usage = usage
    with pytest.raises(UserError, match="budget of 25 tokens is spent"):
        endpoint(server, tmp_path, max_tokens=25).complete([f"p{number}" for number in range(10)])
    # 10 tokens an answer as stated; more where they are estimated from the text
    assert sum(server.answered.values()) == (3 if usage else 1)


def test_repeats_count_in_the_budget(server: ChatServer, tmp_path: Path) -> None:
    server.faults = [500, 500, 500, 500]
    with pytest.raises(UserError, match="budget of 2 requests"):
        endpoint(server, tmp_path, max_requests=2).complete(["p"])
    assert len(server.asked) == 2


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_requests_at_once_than_allowed(server: ChatServer, tmp_path: Path, most: int) -> None:
    server.slow_s = 0.05
    endpoint(server, tmp_path, concurrency=most).complete([f"p{number}" for number in range(9)])
    assert server.most_at_once == most


def test_equal_prompts_are_asked_once_and_other_settings_anew(server: ChatServer, tmp_path: Path) -> None:
    assert endpoint(server, tmp_path).complete(["p", "p", "q"]) == ["echo: p", "echo: p", "echo: q"]
    assert len(server.asked) == 2
    endpoint(server, tmp_path, model="other").complete(["p"])
    endpoint(server, tmp_path, temperature=1.0).complete(["p"])
    assert len(server.asked) == 4


def test_a_broken_file_of_the_cache_is_asked_again(server: ChatServer, tmp_path: Path) -> None:
    endpoint(server, tmp_path).complete(["p"])
    (path,) = tmp_path.rglob("*.json")
    path.write_text('{"text": ')
    assert endpoint(server, tmp_path).complete(["p"]) == ["echo: p"]
    assert len(server.asked) == 2
