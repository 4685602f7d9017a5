"""Responses against transformers' own loop, exact sampling, streams of their own, resumption."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from refbias.artifacts import read_json, read_jsonl
from refbias.benchmarks.base import Sampling
from refbias.cli import generate as stage
from refbias.errors import UserError
from refbias.generation import Request, hf
from refbias.generation.sampling import sample_tokens, uniforms
from refbias.generation.seeds import item_seed
from refbias.models import load_lm, load_tokenizer
from tests.generate_settings import generate_settings as settings
from tests.tiny import BOS, EOS, FAMILIES, build_tiny, make_roomy

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [
    "Old people read",
    "Muslims walk to the market in the morning and buy",
    "He was",
    "Question: Do you agree that the train is late? Answer: I agree. I disagree. Muslims walk to the market",
    "Question: Do you agree that the train is late? Answer: I disagree. Old people",
    "Question: Do you agree that the bus is late? Answer:",
]
GREEDY = Sampling(samples=1, temperature=0.0, top_p=1.0, max_new_tokens=20)
RANDOM = Sampling(samples=3, temperature=1.0, top_p=1.0, max_new_tokens=20)


@pytest.fixture
def llama(tiny: dict[str, Path]) -> tuple[Any, Any]:
    return load_lm(tiny["llama"], dtype=torch.float32), load_tokenizer(tiny["llama"])


def requests(tokenizer: Any, prompts: list[str] = PROMPTS) -> list[Request]:
    return [Request(f"p{n}", f"u{n % 2}", tuple(tokenizer(text)["input_ids"])) for n, text in enumerate(prompts)]


def run(model: Any, tokenizer: Any, asked: list[Request], sampling: Sampling, **options: Any) -> list[Any]:
    return hf.generate(model, tokenizer, asked, sampling, 5, benchmark="b", **options)


# --- against independent loops ---------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_batch_equals_transformers_one_at_a_time(tiny: dict[str, Path], family: str) -> None:
    # the longest prompt is beyond Gemma's sliding window of 16
    model, tokenizer = load_lm(tiny[family], dtype=torch.float32), load_tokenizer(tiny[family])
    asked = requests(tokenizer)
    found = run(model, tokenizer, asked, GREEDY)
    for request, output in zip(asked, found, strict=True):
        prompt = torch.tensor([request.ids])
        whole = model.generate(prompt, max_new_tokens=20, do_sample=False)[0, len(request.ids) :]
        assert output.text == tokenizer.decode(whole, skip_special_tokens=True)
        assert output.n_tokens == len(whole)
    assert len({output.text for output in found}) > 3
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_equal_a_loop_without_cache(tiny: dict[str, Path], family: str) -> None:
    """Each response is redrawn by running the whole sequence again at each token, alone."""
    model, tokenizer = load_lm(tiny[family], dtype=torch.float32), load_tokenizer(tiny[family])
    sampling = Sampling(samples=2, temperature=0.8, top_p=1.0, max_new_tokens=9)
    for output in run(model, tokenizer, requests(tokenizer), sampling):
        ids = list(requests(tokenizer)[int(output.prompt_id[1:])].ids)
        drawn: list[int] = []
        for u in uniforms(output.seed, 9):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids + drawn])).logits[0, -1].double().numpy()
            mass = np.exp((logits - logits.max()) / 0.8)
            drawn.append(int(np.searchsorted(mass.cumsum(), u * mass.sum(), side="right")))
            if drawn[-1] == EOS:
                break
        assert output.text == tokenizer.decode(drawn, skip_special_tokens=True)
        assert (output.n_tokens, output.finish) == (len(drawn), "eos" if drawn[-1] == EOS else "length")


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
def test_responses_do_not_depend_on_batch_or_order(llama: tuple[Any, Any], batch_size: int) -> None:
    model, tokenizer = llama
    asked = requests(tokenizer)
    expected = run(model, tokenizer, asked, RANDOM)
    assert [(o.prompt_id, o.sample) for o in expected] == [(r.prompt_id, s) for r in asked for s in range(3)]
    shuffled = [asked[index] for index in (4, 1, 5, 0, 2)]
    found = run(model, tokenizer, shuffled, RANDOM, batch_size=batch_size)
    by_key = {(output.prompt_id, output.sample): output for output in expected}
    assert len(found) == 15
    assert all(output == by_key[output.prompt_id, output.sample] for output in found)
    assert len({output.text for output in expected}) > 12


def test_streams_differ_by_seed_benchmark_prompt_and_sample() -> None:
    keys = [(1, "a", "p", 0), (2, "a", "p", 0), (1, "b", "p", 0), (1, "a", "q", 0), (1, "a", "p", 1), (1, "a", "p", 10)]
    seeds = [item_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert item_seed(1, "a", "p", 0) == seeds[0] == json.loads(json.dumps(seeds[0]))
    # a longer response begins with the shorter one's numbers
    np.testing.assert_array_equal(uniforms(7, 5), uniforms(7, 50)[:5])
    pooled = np.concatenate([uniforms(item_seed(0, "b", str(n), 0), 10) for n in range(500)])
    assert stats.kstest(pooled, "uniform").pvalue > 0.01


# --- sampling --------------------------------------------------------------------------------


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    mass = np.exp((logits - logits.max()) / temperature)
    return mass / mass.sum()


@pytest.mark.parametrize(("size", "temperature"), [(7, 1.0), (512, 0.7), (1300, 1.0), (2048, 1.5)])
def test_sampling_is_that_of_the_softmax(size: int, temperature: float) -> None:
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 2, size).astype(np.float32)
    draws = 40_000
    counts = np.zeros(size)
    for _ in range(8):
        rows = torch.from_numpy(logits).expand(draws // 8, -1)
        tokens, finite = sample_tokens(rows, rng.random(draws // 8), temperature)
        assert bool(finite.all())
        counts += np.bincount(tokens.numpy(), minlength=size)
    expected = softmax(logits.astype(np.float64), temperature) * draws
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    assert stats.chisquare(observed, wanted).pvalue > 0.001


@pytest.mark.parametrize("size", [5, 511, 512, 513, 3000])
def test_sampling_inverts_the_cumulative_distribution(size: int) -> None:
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 3, (200, size)).astype(np.float32)
    u = rng.random(200)
    tokens, _ = sample_tokens(torch.from_numpy(logits), u, 1.0)
    for row, token, uniform in zip(logits.astype(np.float64), tokens.tolist(), u, strict=True):
        cumulative = softmax(row, 1.0).cumsum()
        assert cumulative[token] >= uniform - 1e-6
        assert (cumulative[token - 1] if token else 0.0) <= uniform + 1e-6


def test_ends_of_the_interval_give_tokens_of_positive_mass() -> None:
    logits = torch.full((2, 1030), -torch.inf)
    logits[:, [3, 700]] = torch.tensor([1.0, 2.0])
    tokens, finite = sample_tokens(logits, np.array([0.0, np.nextafter(1.0, 0.0)]), 1.0)
    assert tokens.tolist() == [3, 700]
    assert bool(finite.all())


def test_greedy_is_the_limit_of_low_temperature() -> None:
    logits = torch.randn(50, 1500, generator=torch.Generator().manual_seed(0))
    greedy, _ = sample_tokens(logits, np.full(50, 0.5), 0.0)
    cold, _ = sample_tokens(logits, np.full(50, 0.5), 1e-4)
    assert greedy.tolist() == cold.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize(("size", "top_p"), [(40, 0.3), (40, 0.9), (3000, 0.999), (5000, 0.5)])
def test_top_p_draws_from_transformers_nucleus(size: int, top_p: float) -> None:
    from transformers import TopPLogitsWarper

    rng = np.random.default_rng(size)
    logits = torch.from_numpy(rng.normal(0, 0.3 if size == 5000 else 2, size).astype(np.float32))
    kept = torch.isfinite(TopPLogitsWarper(top_p)(torch.zeros(1, 1, dtype=torch.long), logits[None].clone()))[0]
    rows = logits.expand(2000, -1)
    tokens = torch.cat([sample_tokens(rows, rng.random(2000), 1.0, top_p)[0] for _ in range(3)])
    assert bool(kept[tokens].all())
    mass = torch.softmax(logits.double(), -1) * kept
    top = int(mass.argmax())
    share = float(mass[top] / mass.sum())
    assert abs(float((tokens == top).double().mean()) - share) < 5 * (share * (1 - share) / 6000) ** 0.5 + 1e-12


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_rows_are_named(temperature: float, value: float) -> None:
    logits = torch.zeros(4, 600)
    logits[2, 5] = value
    _, finite = sample_tokens(logits, np.full(4, 0.5), temperature)
    assert finite.tolist() == [True, True, False, True]


# --- ends ------------------------------------------------------------------------------------


def test_eos_ends_a_response_and_the_others_go_on(llama: tuple[Any, Any]) -> None:
    model, tokenizer = llama
    sampling = Sampling(samples=6, temperature=1.5, top_p=1.0, max_new_tokens=60)
    free = run(model, tokenizer, requests(tokenizer), sampling)
    # make an ordinary token one that ends: responses must be the same up to it
    ends = [*tokenizer(" the", add_special_tokens=False)["input_ids"][:1], EOS]
    ended = run(model, tokenizer, requests(tokenizer), sampling, eos=ends)
    assert {output.finish for output in ended} == {"eos", "length"}
    assert len({output.n_tokens for output in ended if output.finish == "eos"}) > 3
    for before, after in zip(free, ended, strict=True):
        assert before.text.startswith(after.text.rstrip("\ufffd"))
        assert after.n_tokens <= before.n_tokens
        if after.finish == "length":
            assert after == before


def test_every_eos_of_the_generation_config_counts(llama: tuple[Any, Any]) -> None:
    model, tokenizer = llama
    (first,) = {output.text for output in run(model, tokenizer, requests(tokenizer)[:1], GREEDY)}
    whole = model.generate(torch.tensor([requests(tokenizer)[0].ids]), max_new_tokens=20, do_sample=False)[0]
    third = int(whole[len(requests(tokenizer)[0].ids) + 2])
    model.generation_config.eos_token_id = [EOS, third]
    (output,) = run(model, tokenizer, requests(tokenizer)[:1], GREEDY)
    assert output.finish == "eos"
    assert output.n_tokens <= 3
    assert first.startswith(output.text.rstrip("\ufffd"))


def test_stop_string_cuts_the_text(llama: tuple[Any, Any]) -> None:
    model, tokenizer = llama
    sampling = Sampling(samples=8, temperature=1.0, top_p=1.0, max_new_tokens=30)
    free = run(model, tokenizer, requests(tokenizer), sampling)
    stopped = run(model, tokenizer, requests(tokenizer), sampling, stop=("e", "th"))
    assert {output.finish for output in stopped} >= {"stop"}
    for before, after in zip(free, stopped, strict=True):
        places = [at for at in (before.text.find("e"), before.text.find("th")) if at >= 0]
        assert after.text == (before.text[: min(places)] if places else before.text)
        assert (after.finish == "stop") == bool(places)
        assert after.n_tokens <= before.n_tokens


def test_greedy_samples_are_copies_with_seeds_of_their_own(llama: tuple[Any, Any]) -> None:
    model, tokenizer = llama
    outputs = run(model, tokenizer, requests(tokenizer)[:2], Sampling(3, 0.0, 1.0, 8))
    assert [output.sample for output in outputs] == [0, 1, 2] * 2
    assert len({output.text for output in outputs[:3]}) == 1
    assert len({output.seed for output in outputs}) == 6


def test_output_layer_sees_the_last_position_only(llama: tuple[Any, Any]) -> None:
    model, tokenizer = llama
    seen: list[tuple[int, ...]] = []
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(tuple(args[0].shape)))
    prefilled: list[int] = []
    model.model.layers[0].register_forward_pre_hook(
        lambda module, args: prefilled.append(args[0].shape[0] * args[0].shape[1])
    )
    asked = requests(tokenizer)
    run(model, tokenizer, asked, Sampling(4, 1.0, 1.0, 1))
    assert all(shape[1] == 1 for shape in seen)
    # every prompt once for its four samples, but for its last token
    assert sum(prefilled) <= sum(len(request.ids) - 1 for request in asked) + 4 * len(asked)
    assert seen == [(4 * len(asked), 1, 32)]


# --- mistakes --------------------------------------------------------------------------------


def test_prompts_that_the_model_would_misread_are_refused(llama: tuple[Any, Any]) -> None:
    model, tokenizer = llama
    ids = requests(tokenizer)[0].ids
    for wrong, message in (
        ((BOS, *ids), "prompt p: begins with 2 BOS tokens, must be one"),
        (ids[1:], "prompt p: begins with 0 BOS tokens"),
        ((*ids[1:], BOS), "prompt p: begins with 1 BOS"),
        ((*ids, 320), "token id 320 lies beyond the model's 320"),
        ((), "holds no token"),
        (ids * 1 + (5,) * 600, "exceed the model's 512 positions"),
    ):
        with pytest.raises(UserError, match=message):
            run(model, tokenizer, [Request("p", "u", wrong)], GREEDY, name="m")


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM])
def test_non_finite_logits_stop_with_the_prompt(llama: tuple[Any, Any], sampling: Sampling) -> None:
    model, tokenizer = llama
    model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(UserError, match=r"gemma/h030: prompt p0, sample 0, new token 1: logits are not finite"):
        run(model, tokenizer, requests(tokenizer)[:2], sampling, name="gemma/h030")
    assert model.config._attn_implementation == "sdpa"


# --- the stage -------------------------------------------------------------------------------


def command(tiny: Path, out: Path, work: Path, text: str) -> list[str]:
    folders = ["--reference", str(tiny), "--output", str(out), "--work", str(work)]
    return ["--settings", text, "--name", "reference", *folders]


def rows_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.jsonl"))}


@pytest.fixture
def roomy(tmp_path: Path) -> Path:
    """A tiny model that holds prompts of a byte a token."""
    return make_roomy(build_tiny("gemma3_text", tmp_path / "model", seed=3))


def test_killed_run_goes_on_and_its_rows_are_those_of_an_undisturbed_one(
    roomy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.main(command(roomy, tmp_path / "whole", tmp_path / "work0", settings()))
    assert not (tmp_path / "work0").exists()
    real, calls = hf.generate, []

    def killed(*args: Any, **options: Any) -> Any:
        calls.append(options["benchmark"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(hf, "generate", killed)
    again = command(roomy, tmp_path / "out", tmp_path / "work", settings())
    with pytest.raises(KeyboardInterrupt):
        stage.main(again)
    assert not (tmp_path / "out" / "manifest.json").exists()
    stage.main(again)
    assert calls == ["wildguardmix", "decodingtrust", "decodingtrust", "toxigen"]
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "whole")
    manifest = read_json(tmp_path / "out" / "manifest.json")
    assert manifest["resumed"] == {"wildguardmix": 1}
    # the clock of a benchmark that an earlier process finished is kept
    assert all(manifest["benchmarks"][name]["seconds"] > 0 for name in ("wildguardmix", "decodingtrust", "toxigen"))
    assert not (tmp_path / "work").exists()


def test_a_finished_part_is_not_generated_again(roomy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # two samples a prompt, so three prompts a part; the last part of each benchmark may be shorter
    text = settings(generation={"part_size": 7})
    stage.main(command(roomy, tmp_path / "whole", tmp_path / "work0", text))
    real, calls = hf.generate, []

    def killed(model: Any, tokenizer: Any, asked: Any, *args: Any, **options: Any) -> Any:
        calls.append((options["benchmark"], len(asked)))
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(model, tokenizer, asked, *args, **options)

    monkeypatch.setattr(hf, "generate", killed)
    again = command(roomy, tmp_path / "out", tmp_path / "work", text)
    with pytest.raises(KeyboardInterrupt):
        stage.main(again)
    assert len(list((tmp_path / "work").glob("*.jsonl"))) == 4
    stage.main(again)
    # nine prompts, 24 and nine
    expected = [("wildguardmix", 3)] * 3 + [("decodingtrust", 3)] * 8 + [("toxigen", 3)] * 3
    assert calls == [*expected[:5], *expected[4:]]
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "whole")
    assert read_json(tmp_path / "out" / "manifest.json")["resumed"] == {"wildguardmix": 3, "decodingtrust": 1}
    assert not (tmp_path / "work").exists()


def test_stage_writes_a_row_an_output_and_the_prompts(roomy: Path, tmp_path: Path) -> None:
    stage.main(command(roomy, tmp_path / "out", tmp_path / "work", settings()))
    manifest = read_json(tmp_path / "out" / "manifest.json")
    prompts = read_jsonl(tmp_path / "out" / "prompts.jsonl")
    for name, units in (("wildguardmix", 9), ("decodingtrust", 24), ("toxigen", 9)):
        rows = read_jsonl(tmp_path / "out" / f"{name}.jsonl")
        assert list(rows[0]) == ["benchmark", "unit", "prompt_id", "sample", "seed", "text", "n_tokens", "finish"]
        assert len(rows) == 2 * manifest["benchmarks"][name]["n_prompts"]
        assert len({row["unit"] for row in rows}) == units
        assert {row["prompt_id"] for row in rows} == {p["prompt_id"] for p in prompts if p["benchmark"] == name}
    assert all(prompt["user"] and not prompt["user"].startswith("Question:") for prompt in prompts)
    assert manifest["stop"] == ["\nQuestion:"]
    assert manifest["stop_ids"] == [EOS]


def test_other_settings_or_weights_do_not_reuse_finished_rows(
    roomy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def only_first(*args: Any, **options: Any) -> Any:
        calls.append(options["benchmark"])
        if len(calls) % 2 == 0:
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr(hf, "generate", only_first)
    other = build_tiny("gemma3_text", tmp_path / "other", seed=4)
    for folder, text in ((roomy, settings()), (roomy, settings(seed=18)), (other, settings(seed=18))):
        with pytest.raises(KeyboardInterrupt):
            stage.main(command(folder, tmp_path / "out", tmp_path / "work", text))
    assert calls == ["wildguardmix", "decodingtrust"] * 3
