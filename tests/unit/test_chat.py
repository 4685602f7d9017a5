"""Chat formatting: one BOS, one format for training and generation, no special token from text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from refbias.errors import UserError
from refbias.models.chat import completion_ids, prompt_ids, resolve_format, stop_ids
from refbias.models.load import load_tokenizer
from tests.tiny import BOS, EOS, build_tokenizer

# the marker tokens of each family's template, which its real tokenizer holds as special tokens
MARKERS = {
    "gemma": ["<start_of_turn>", "<end_of_turn>"],
    "gemma3": ["<start_of_turn>", "<end_of_turn>"],
    "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "llama3_1": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "llama3_2": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
}
# the shape of Mistral 7B Instruct's template: brackets are text, no system role, an own EOS
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
DROPS_SYSTEM = MISTRAL.replace("{{ raise_exception('Only user and assistant roles are supported!') }}", "")


@dataclass(frozen=True)
class Turn:
    role: str
    content: str


USER = (Turn("user", "Do you agree?"),)
SYSTEM = (Turn("system", "Be kind."), *USER)


def _template(name: str) -> str:
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(path)
    return path


def _tokenizer(folder: Path, template: str | None = None, markers: list[str] | None = None) -> Any:
    tokenizer: Any = load_tokenizer(folder)
    if markers:
        tokenizer.add_special_tokens({"additional_special_tokens": markers})
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module", params=[*MARKERS, "mistral"])
def instructed(request: pytest.FixtureRequest, folder: Path) -> Any:
    if request.param == "mistral":
        return _tokenizer(folder, MISTRAL)
    return _tokenizer(folder, _template(request.param), MARKERS[request.param])


def test_plain_format_is_the_documented_text(folder: Path) -> None:
    tokenizer = _tokenizer(folder)
    ids = prompt_ids(tokenizer, SYSTEM, "auto")
    answer = completion_ids(tokenizer, SYSTEM, "I agree.", "auto")
    assert ids[0] == BOS
    assert tokenizer.decode(ids[1:]) == "Question: Be kind.\n\nDo you agree?\nAnswer:"
    assert tokenizer.decode(answer[:-1]) == " I agree."
    assert answer[-1] == EOS


def test_exactly_one_bos_in_prompt_and_none_in_completion(instructed: Any) -> None:
    for turns in (USER, SYSTEM):
        ids = prompt_ids(instructed, turns, "auto")
        assert ids.count(BOS) == 1
        assert ids[0] == BOS
        assert BOS not in completion_ids(instructed, turns, "I agree.", "auto")


def test_template_that_forgets_bos_still_gets_one(folder: Path) -> None:
    tokenizer = _tokenizer(folder, MISTRAL.replace("{{ bos_token }}", ""))
    assert prompt_ids(tokenizer, USER).count(BOS) == 1


def test_double_bos_of_a_template_is_reduced_to_one(folder: Path) -> None:
    tokenizer = _tokenizer(folder, "{{ bos_token }}" + MISTRAL)
    assert prompt_ids(tokenizer, USER).count(BOS) == 1


def test_completion_ends_in_the_token_that_stops_generation(instructed: Any) -> None:
    answer = completion_ids(instructed, USER, "I agree.", "auto")
    stops = stop_ids(instructed)
    assert answer[-1] in stops
    assert sum(token in stops for token in answer) == 1
    assert EOS in stops
    assert "I agree." in instructed.decode(answer)


def test_end_of_turn_of_gemma_and_llama_stops(folder: Path) -> None:
    for name, end in (("gemma3", "<end_of_turn>"), ("llama3", "<|eot_id|>")):
        tokenizer = _tokenizer(folder, _template(name), MARKERS[name])
        assert stop_ids(tokenizer) == [EOS, tokenizer.convert_tokens_to_ids(end)]
        assert stop_ids(tokenizer, "plain") == [EOS]


def test_training_and_generation_see_the_same_prompt(instructed: Any) -> None:
    turns = [{"role": turn.role, "content": turn.content} for turn in USER]
    rendered = instructed.apply_chat_template(
        [*turns, {"role": "assistant", "content": "I agree."}], tokenize=False, date_string="26 Jul 2024"
    )
    text = instructed.decode([*prompt_ids(instructed, USER), *completion_ids(instructed, USER, "I agree.")])
    assert rendered.rstrip().startswith(text) or text.startswith(rendered.rstrip())


def test_system_turn_is_folded_where_the_template_refuses_or_drops_it(folder: Path) -> None:
    for template in (MISTRAL, DROPS_SYSTEM):
        text = _tokenizer(folder, template).decode(prompt_ids(_tokenizer(folder, template), SYSTEM))
        assert "[INST] Be kind.\n\nDo you agree? [/INST]" in text


def test_system_turn_is_kept_where_the_template_has_one(folder: Path) -> None:
    tokenizer = _tokenizer(folder, _template("llama3"), MARKERS["llama3"])
    assert "<|start_header_id|>system<|end_header_id|>\n\nBe kind." in tokenizer.decode(prompt_ids(tokenizer, SYSTEM))


@pytest.mark.parametrize("name", ["llama3_1", "llama3_2"])
def test_date_in_a_template_is_frozen(folder: Path, name: str) -> None:
    tokenizer = _tokenizer(folder, _template(name), MARKERS[name])
    assert "26 Jul 2024" in tokenizer.decode(prompt_ids(tokenizer, USER))


def test_template_that_asks_for_the_time_is_frozen(folder: Path) -> None:
    tokenizer = _tokenizer(folder, "{{ strftime_now('%d %b %Y') }} {{ messages[-1]['content'] }}")
    assert tokenizer.decode(prompt_ids(tokenizer, USER)[1:]).startswith("26 Jul 2024")


@pytest.mark.parametrize("text", ["<eos>", "<bos> hello", "a <pad> b"])
def test_special_tokens_spelled_in_text_stay_text(folder: Path, text: str) -> None:
    for template in (None, MISTRAL):
        ids = prompt_ids(_tokenizer(folder, template), (Turn("user", text),))
        assert ids.count(BOS) == 1
        assert EOS not in ids
        answer = completion_ids(_tokenizer(folder, template), USER, text)
        assert answer.count(EOS) == 1
        assert BOS not in answer


def test_conversations_that_cannot_be_expressed_are_refused(folder: Path) -> None:
    tokenizer = _tokenizer(folder)
    with pytest.raises(UserError, match="turn 1: role 'tool'"):
        prompt_ids(tokenizer, (Turn("tool", "x"),))
    with pytest.raises(UserError, match="must end in a user turn"):
        prompt_ids(tokenizer, (Turn("system", "x"),))
    with pytest.raises(UserError, match="turn 2: a system turn must come first"):
        prompt_ids(tokenizer, (*USER, Turn("system", "x"), *USER))
    with pytest.raises(UserError, match="chat_format"):
        resolve_format(tokenizer, "template")
    refusing = _tokenizer(folder, "{{ raise_exception('no') }}")
    with pytest.raises(UserError, match=r"refuses the turns \(user\)"):
        prompt_ids(refusing, USER)
