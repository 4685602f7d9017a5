"""Reading and moving a model's states: where, by how much, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from refbias.benchmarks.base import Sampling
from refbias.competence.direction import Sides, mean_difference
from refbias.competence.prompts import Placed, up_to_place
from refbias.competence.scores import expertise
from refbias.competence.steering import (
    ablated,
    addition,
    affine_ablation,
    block_of,
    bounded_alphas,
    changed,
    perplexity,
    steered,
)
from refbias.competence.subjects import find_subject, load_subject, read_states, sentence_tokens, whole_states
from refbias.config.models import Compute
from refbias.embed import Tokenised
from refbias.errors import UserError
from refbias.generation import Request
from refbias.generation.hf import generate
from refbias.models import load_lm, load_tokenizer
from tests.tiny import BOS, build_tiny

FAMILIES = ("llama", "mistral", "gemma3_text")
IDS = torch.tensor([[2, 40, 41, 42, 43, 44, 45, 46], [2, 50, 51, 52, 53, 54, 55, 56]])
CPU = Compute(device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: build_tiny(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, folders: dict[str, Path]):  # type: ignore[no-untyped-def]
    return load_lm(folders[request.param], dtype=torch.float32)


def _hidden(model, ids=IDS):  # type: ignore[no-untyped-def]
    """States by transformers' own account: 0 = embeddings, k = output of block k but for the last, which is normed."""
    seen = {}

    def keep(number: int):  # type: ignore[no-untyped-def]
        def hook(_, __, out) -> None:  # type: ignore[no-untyped-def]
            seen[number] = out[0] if isinstance(out, tuple) else out

        return hook

    handles = [block.register_forward_hook(keep(n)) for n, block in enumerate(model.model.layers, start=1)]
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits
    for handle in handles:
        handle.remove()
    return seen, logits


def _vector(seed: int = 0) -> np.ndarray:
    return 3 * np.random.default_rng(seed).standard_normal(32)


def test_steering_raises_the_score_by_alpha_times_the_norm_and_changes_nothing_before(model) -> None:  # type: ignore[no-untyped-def]
    vector = _vector()
    norm = float(np.sqrt((vector**2).sum()))
    plain, logits = _hidden(model)
    for alpha in (-2.0, 0.5, 4.0):
        with steered(model, 2, vector, alpha, first=3):
            moved, new_logits = _hidden(model)
        torch.testing.assert_close(moved[1], plain[1], rtol=0, atol=0)
        for layer in (1, 2, 3):
            torch.testing.assert_close(moved[layer][:, :3], plain[layer][:, :3], rtol=0, atol=0)
        torch.testing.assert_close(new_logits[:, :3], logits[:, :3], rtol=0, atol=0)
        rise = expertise(moved[2][0, 3:].numpy(), vector) - expertise(plain[2][0, 3:].numpy(), vector)
        np.testing.assert_allclose(rise, alpha * norm, rtol=1e-5)
        assert (moved[3][:, 3:] - plain[3][:, 3:]).abs().max() > 0.1
    # gone with the block that it was made in
    assert torch.equal(_hidden(model)[1], logits)


def test_alpha_0_is_bit_equal_to_no_hook(model, folders: dict[str, Path]) -> None:  # type: ignore[no-untyped-def]
    plain, logits = _hidden(model)
    with steered(model, 2, _vector(), 0.0):
        same, new_logits = _hidden(model)
    assert all(torch.equal(same[layer], plain[layer]) for layer in plain)
    assert torch.equal(new_logits, logits)
    half = load_lm(folders["llama"], dtype=torch.bfloat16)
    logits = _hidden(half)[1]
    with steered(half, 1, _vector(), 0.0):
        assert torch.equal(_hidden(half)[1], logits)


def test_with_a_cache_of_keys_and_values_it_is_the_same(model) -> None:  # type: ignore[no-untyped-def]
    for first in (0, 2):
        with steered(model, 2, _vector(1), 1.5, first=first), torch.inference_mode():
            whole = model(input_ids=IDS, use_cache=False).logits
            cache, parts = None, []
            for start, end in ((0, 4), (4, 5), (5, 6), (6, 8)):
                out = model(input_ids=IDS[:, start:end], past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                parts.append(out.logits)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_under_steering_is_a_greedy_search_without_a_cache(folders: dict[str, Path], family: str) -> None:
    model, tokenizer = load_lm(folders[family], dtype=torch.float32), load_tokenizer(folders[family])
    # of unequal length and with a common beginning: prefilled in parts and right-aligned
    prompts = [[2, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50], [2, 40, 41, 42, 43, 44, 45, 46, 47, 48, 60, 61, 62, 63]]
    requests = [Request(f"p{n}", "u", tuple(prompt)) for n, prompt in enumerate(prompts)]
    for first in (0, 1):
        with steered(model, 2, _vector(2), 1.0, first=first):
            found = generate(model, tokenizer, requests, Sampling(1, 0.0, 1.0, 5), 0, benchmark="b")
            for prompt, output in zip(prompts, found, strict=True):
                ids = list(prompt)
                for _ in range(output.n_tokens):
                    with torch.inference_mode():
                        ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
                assert tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True) == output.text


class _Block(torch.nn.Module):
    def __init__(self, tupled: bool) -> None:
        super().__init__()
        self.tupled = tupled

    def forward(self, states: torch.Tensor) -> object:
        return (states * 2, "attention") if self.tupled else states * 2


@pytest.mark.parametrize("tupled", [True, False])
def test_blocks_may_return_a_tensor_or_a_tuple(tupled: bool) -> None:
    states, vector = torch.randn(2, 3, 32), _vector()
    block = _Block(tupled)
    with changed(block, addition(vector, 2.0)):
        found = block(states)
    if tupled:
        assert found[1] == "attention"
        found = found[0]
    torch.testing.assert_close(found, 2 * states + 2 * torch.tensor(vector, dtype=torch.float32))
    with (
        changed(block, addition(vector, 2.0), first=1),
        pytest.raises(UserError, match="blocks are not told positions"),
    ):
        block(states)


def test_affine_ablation_gives_every_state_one_projection_and_leaves_the_rest(model) -> None:  # type: ignore[no-untyped-def]
    vector = _vector(3)
    plain, _ = _hidden(model)
    with ablated(model, 2, vector, centre=0.7):
        moved, _ = _hidden(model)
    np.testing.assert_allclose(expertise(moved[2].flatten(0, 1).numpy(), vector), 0.7, atol=1e-5)
    u = vector / np.sqrt((vector**2).sum())
    before, after = (states[2].flatten(0, 1).double().numpy() for states in (plain, moved))
    np.testing.assert_allclose(after - np.outer(after @ u, u), before - np.outer(before @ u, u), atol=1e-5)
    twice = affine_ablation(vector, 0.7)(affine_ablation(vector, 0.7)(plain[2]))
    torch.testing.assert_close(twice, moved[2], rtol=1e-5, atol=1e-5)


def test_a_block_that_is_not_there_is_refused(model) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match="has blocks 1 to 3"):
        block_of(model, 4)


def test_perplexity_is_that_of_the_tokens_behind_the_first(model) -> None:  # type: ignore[no-untyped-def]
    rows = [tuple(IDS[0].tolist()), tuple(IDS[1, :4].tolist()), (2,)]
    losses = []
    for row in rows[:2]:
        logits = model(input_ids=torch.tensor([row]), use_cache=False).logits[0].double().log_softmax(-1)
        losses += [-float(logits[at, token]) for at, token in enumerate(row[1:])]
    found = perplexity(model, Tokenised(("a", "b", "c"), tuple(rows), (0, 1, 2)))
    assert found == pytest.approx(float(np.exp(np.mean(losses))), rel=1e-5)
    with pytest.raises(UserError, match="no sentence of two tokens"):
        perplexity(model, Tokenised(("c",), ((2,),), (0,)))


def test_the_grid_ends_where_perplexity_passes_the_limit() -> None:
    tried = []

    def measure(alpha: float) -> float:
        tried.append(alpha)
        return 10 + alpha**2 if alpha > 0 else 10 + 4 * alpha**2

    found, allowed = bounded_alphas([-4, -2, -1, 1, 2, 4, 8], measure, 2.0)
    assert allowed == [-1, 0, 1, 2]
    assert tried == [0, 1, 2, 4, -1, -2]
    assert found[4] == 26


def _pairs() -> tuple[list[str], list[str]]:
    experts = ["The teacher praised the young woman.", "Old people read.", "A warm smile and a generous gift."]
    return experts, ["He was cold.", "Everyone avoided him in the morning by the river.", "A bitter loss!"]


def test_a_massive_state_of_bos_does_not_enter_the_direction(folders: dict[str, Path], tmp_path: Path) -> None:
    """Sentences of unequal length: pooled with BOS, the difference in length is what e is made of."""
    model = load_lm(folders["llama"], dtype=torch.float32)
    model.model.embed_tokens.weight.data[BOS, 7] = 2000.0
    model.save_pretrained(tmp_path)
    load_tokenizer(folders["llama"]).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    experts, novices = _pairs()
    sentences = sentence_tokens(tokenizer, [*experts, *novices])
    assert all(ids[0] == BOS for ids in sentences.ids)
    assert len({len(ids) for ids in sentences.ids}) > 3
    states = read_states(find_subject("t", tmp_path), sentences, "all", CPU, pooling="mean", bos=BOS)
    assert sorted(states) == [1, 2, 3]
    e = mean_difference(Sides(states[2][:3], states[2][3:]))
    by_hand, leaked = [], []
    for ids in sentences.ids:
        hidden = _hidden(model, torch.tensor([ids]))[0][2][0].double().numpy()
        by_hand.append(hidden[1:].mean(0))
        leaked.append(hidden.mean(0))
    np.testing.assert_allclose(e, np.mean(by_hand[:3], 0) - np.mean(by_hand[3:], 0), atol=1e-4)
    wrong = np.mean(leaked[:3], 0) - np.mean(leaked[3:], 0)
    assert wrong[7] ** 2 / (wrong**2).sum() > 0.9
    assert e[7] ** 2 / (e**2).sum() < 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_states_read_layer_by_layer_are_those_of_the_whole_model(folders: dict[str, Path], family: str) -> None:
    tokenizer = load_tokenizer(folders[family])
    sentences = sentence_tokens(tokenizer, [text for side in _pairs() for text in side])
    subject = find_subject("t", folders[family])
    model = load_subject(subject, CPU).base_model
    for pooling in ("mean", "last"):
        streamed = read_states(subject, sentences, "all", CPU, pooling=pooling, bos=BOS)  # type: ignore[arg-type]
        whole = whole_states(model, sentences, "all", pooling=pooling, bos=BOS)  # type: ignore[arg-type]
        for layer in (1, 2, 3):
            np.testing.assert_allclose(streamed[layer], whole[layer], atol=1e-5)


def test_the_score_at_a_place_does_not_depend_on_what_follows(model) -> None:  # type: ignore[no-untyped-def]
    ids = tuple(IDS[0].tolist())
    prompts = [Placed(ids, 4), Placed((*ids[:5], 99, 98, 97), 4)]
    cut = up_to_place(prompts)
    assert len(cut.ids) == 1
    vector = _vector()
    found = whole_states(model.base_model, cut, [2], pooling="last", bos=BOS)[2]
    for prompt in prompts:
        by_hand = _hidden(model, torch.tensor([prompt.ids]))[0][2][0, 4].double().numpy()
        np.testing.assert_allclose(expertise(found, vector)[0], by_hand @ vector / np.sqrt(vector @ vector), atol=1e-4)


def test_a_point_between_two_endpoints_is_read_and_loaded_alike(folders: dict[str, Path], tmp_path: Path) -> None:
    other = build_tiny("mistral", tmp_path / "other", seed=1)
    subject = find_subject("full-h025", folders["mistral"], (folders["mistral"], other), 0.25)
    merged = load_subject(subject, CPU)
    ends = [load_lm(folder, dtype=torch.float32) for folder in (folders["mistral"], other)]
    for name, parameter in merged.named_parameters():
        first, second = (dict(end.named_parameters())[name] for end in ends)
        torch.testing.assert_close(parameter, 0.75 * first + 0.25 * second)
    sentences = sentence_tokens(load_tokenizer(folders["mistral"]), _pairs()[0])
    states = read_states(subject, sentences, [2], CPU, pooling="mean", bos=BOS)
    whole = whole_states(merged.base_model, sentences, [2], pooling="mean", bos=BOS)
    np.testing.assert_allclose(states[2], whole[2], atol=1e-5)
    end = find_subject("full-h100", folders["mistral"], (folders["mistral"], other), 1.0)
    assert [(part.weight, part.directory) for part in end.parts] == [(1.0, other)]
