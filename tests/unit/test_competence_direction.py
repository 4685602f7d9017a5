"""The expertise direction: planted ones are found, what is common to all states is not, BOS never enters."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refbias.competence.direction import (
    Direction,
    Sides,
    auc,
    candidates,
    diagnose,
    find_direction,
    gaussian,
    mean_difference,
    read_direction,
    sign_flips,
    write_direction,
)
from refbias.competence.prompts import Cell, cells, place, up_to_place
from refbias.competence.records import Attribute, Question
from refbias.competence.scores import expertise, random_rows, score_rows
from refbias.errors import UserError

D = 48


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)))


def _sides(n: int, planted: np.ndarray, seed: int, noise: float = 1.0) -> Sides:
    rng = np.random.default_rng(seed)
    common = 5 * rng.standard_normal((n, D))
    expert = common + planted / 2 + noise * rng.standard_normal((n, D))
    novice = common - planted / 2 + noise * rng.standard_normal((n, D))
    return Sides(expert.astype(np.float32), novice.astype(np.float32))


@pytest.fixture
def planted() -> np.ndarray:
    vector = np.random.default_rng(5).standard_normal(D)
    return 12 * vector / np.sqrt((vector**2).sum())


def test_a_planted_direction_is_found(planted: np.ndarray) -> None:
    fit, held = _sides(24, planted, 0, 0.3), _sides(8, planted, 1, 0.3)
    assert _cosine(mean_difference(fit), planted) > 0.99
    facts = diagnose(3, fit, held)
    assert facts.norm == pytest.approx(12, rel=0.05)
    assert facts.split_half_cosine > 0.99
    assert facts.norm_percentile == 1
    assert facts.random_cosine < 3 / np.sqrt(D)


def test_swapped_sets_give_the_opposite_and_a_common_constant_nothing(planted: np.ndarray) -> None:
    fit = _sides(24, planted, 0)
    e = mean_difference(fit)
    np.testing.assert_array_equal(mean_difference(Sides(fit.novice, fit.expert)), -e)
    moved = Sides(fit.expert.astype(np.float64) + 1000.0, fit.novice.astype(np.float64) + 1000.0)
    np.testing.assert_allclose(mean_difference(moved), e, atol=1e-10)


def test_no_difference_means_no_separation() -> None:
    """Null data: held-out AUC about one half, and a norm that random signs reach."""
    found = [diagnose(1, _sides(24, np.zeros(D), 2 * n), _sides(200, np.zeros(D), 2 * n + 1)) for n in range(12)]
    assert np.mean([facts.auc_held_out for facts in found]) == pytest.approx(0.5, abs=0.05)
    assert 0.2 < np.mean([facts.norm_percentile for facts in found]) < 0.8
    same = _sides(4, np.zeros(D), 0)
    with pytest.raises(UserError, match="layer 1: has no direction"):
        diagnose(1, Sides(same.expert, same.expert), same)


def test_auc_counts_couples() -> None:
    assert auc([2, 3], [1, 2]) == (1 + 0.5 + 1 + 1) / 4
    assert auc([0], [1]) == 0


def test_sign_flips_are_means_with_random_signs_and_never_the_direction_itself() -> None:
    rows = np.random.default_rng(0).standard_normal((3, D))
    draws = sign_flips(rows, 64, seed=1)
    combinations = [(2 * np.array(signs) - 1) @ rows / 3 for signs in np.ndindex(2, 2, 2)]
    for draw in draws:
        assert min(np.abs(draw - known).max() for known in combinations) < 1e-12
        assert np.abs(draw - rows.mean(0)).max() > 1e-9
        assert np.abs(draw + rows.mean(0)).max() > 1e-9
    np.testing.assert_array_equal(draws, sign_flips(rows, 64, seed=1))


def test_the_layer_is_the_one_that_separates_held_out_pairs(planted: np.ndarray, tmp_path: Path) -> None:
    strength = {1: 0.2, 2: 0.5, 3: 2.0, 4: 0.5, 5: 9.0}
    fit = {layer: _sides(24, factor * planted, layer) for layer, factor in strength.items()}
    held = {layer: _sides(8, factor * planted, 10 + layer) for layer, factor in strength.items()}
    found = find_direction(fit, held, layer=None, share=(0.2, 0.8), notes={"length_gap_tokens": 0.0})
    assert found.layer == 3
    assert find_direction(fit, held, layer=2).layer == 2
    with pytest.raises(UserError, match=r"competence.layer': 9: the model has blocks 1 to 5"):
        find_direction(fit, held, layer=9)
    write_direction(tmp_path, found)
    again = read_direction(tmp_path)
    assert again.facts == found.facts
    assert (again.layer, again.centre, again.notes) == (found.layer, found.centre, found.notes)
    np.testing.assert_array_equal(again.vector, found.vector)
    np.testing.assert_array_equal(again.differences, found.differences)
    (tmp_path / "direction.json").write_text(
        (tmp_path / "direction.json").read_text().replace('"layer": 3,', '"layer": 9,', 1)
    )
    with pytest.raises(UserError, match="layer 9 is not among its layers"):
        read_direction(tmp_path)
    assert candidates(18, (0.25, 0.75)) == list(range(5, 14))
    assert candidates(1, (0.25, 0.75)) == [1]


def _direction(vector: np.ndarray, gap: float = 2.0) -> Direction:
    rng = np.random.default_rng(3)
    sides = _sides(8, vector, 0)
    fact = diagnose(1, sides, sides)
    fact = type(fact)(**{**fact.__dict__, "gap_held_out": gap})
    differences = rng.standard_normal((24, D)).astype(np.float32)
    return Direction(1, {1: vector.astype(np.float32)}, differences, 0.0, (fact,), {})


def _cells() -> list[Cell]:
    attributes = [Attribute(name, "f", "irrelevant", f"I am {name}") for name in ("a", "b")]
    questions = [Question("cook", f"cook_{n}", "Why?") for n in range(3)]
    return list(cells(attributes, questions))


def test_the_score_is_the_projection_whatever_the_length_of_the_direction(planted: np.ndarray) -> None:
    states = np.random.default_rng(0).standard_normal((12, D)).astype(np.float32)
    by_hand = [sum(float(h) * float(p) for h, p in zip(row, planted, strict=True)) / 12 for row in states]
    np.testing.assert_allclose(expertise(states, planted), by_hand, rtol=1e-5)
    np.testing.assert_allclose(expertise(states, 1000 * planted), expertise(states, planted), rtol=1e-12)
    rows = score_rows(_cells(), states, _direction(planted))
    assert rows[0][:6] == ("a", "f", "irrelevant", "cook", "true", "cook_0")
    np.testing.assert_allclose([row[6] for row in rows], by_hand, rtol=1e-4)
    np.testing.assert_allclose([row[7] for row in rows], np.array(by_hand) / 2, rtol=1e-4)
    assert all(abs(row[8]) <= 1 for row in rows)


def test_the_projection_is_not_rounded_to_a_short_number_type(planted: np.ndarray) -> None:
    """States of size 100 differ by 0.01 along the direction: bfloat16 would step by a half."""
    along = planted / np.sqrt((planted**2).sum())
    states = (100 * along + 0.01 * np.arange(5)[:, np.newaxis] * along).astype(np.float32)
    np.testing.assert_allclose(np.diff(expertise(states, planted)), 0.01, atol=1e-5)


def test_random_directions_do_not_depend_on_the_process() -> None:
    code = (
        "import numpy as np, sys; from refbias.competence.direction import gaussian, sign_flips;"
        "rows = np.arange(12.0).reshape(4, 3);"
        "sys.stdout.write(gaussian(5, 3, seed=2).tobytes().hex() + sign_flips(rows, 4, seed=2).tobytes().hex())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert told.pop()


def test_random_directions_give_each_attributes_mean(planted: np.ndarray) -> None:
    states = np.random.default_rng(0).standard_normal((12, D)).astype(np.float32)
    direction = _direction(planted)
    rows = random_rows(_cells(), states, direction, 200, seed=4)
    assert len(rows) == 4 * 2 * 200
    draws = gaussian(D, 200, seed=4)
    np.testing.assert_allclose(np.sqrt((draws**2).sum(1)), 1)
    named = {(row[0], row[1], row[2], row[3]): row[4] for row in rows}
    expected = float(np.mean([row @ draws[7] for row in states[9:12]]))
    assert named["b", "false", "gaussian", 7] == pytest.approx(expected)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny import build_tiny

    return build_tiny("llama", tmp_path_factory.mktemp("tiny"))


def test_the_place_is_the_contexts_own_last_token_not_the_first_full_stop(tiny: Path) -> None:
    from refbias.models import load_tokenizer

    tokenizer = load_tokenizer(tiny)
    question, context = "Dr. Old asks. Is the bread good?", "I am a cook. I walk."
    found = place(tokenizer, question, context, "plain")
    assert tokenizer.decode(found.ids[1 : found.position + 1]) == f"Question: {question} {context}"
    assert tokenizer.decode(found.ids[found.position + 1 :]) == "\nAnswer:"
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}. {{ m.content }} .>{% endfor %}Answer."
    templated = place(tokenizer, question, context, "template")
    assert tokenizer.decode(templated.ids[: templated.position + 1]).endswith(context)
    cut = up_to_place([found, templated, found])
    assert cut.row == (0, 1, 0)
    assert cut.ids[0] == found.ids[: found.position + 1]
    tokenizer.chat_template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    with pytest.raises(UserError, match="does not hold the context"):
        place(tokenizer, question, context, "template")
