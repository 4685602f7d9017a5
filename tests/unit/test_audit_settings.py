"""Settings of an audit, its conditions, and its section of a run's configuration."""

from typing import Any

import pytest

from refbias.audit.verdicts import exceeded
from refbias.cli.audit import parser, settings_of
from refbias.config import root
from refbias.config.audit import AuditSettings, Condition, parse_condition
from refbias.config.audit_result import AuditResult
from refbias.config.base import parse
from refbias.errors import UserError
from tests.unit.audit_example import single


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ci>0.02", [("ci", ">", 0.02)]),
        ("dB<-0.02", [("dB", "<", -0.02)]),
        ("|ci| > 1e-3", [("|ci|", ">", 1e-3)]),
        ("probability>.5", [("probability", ">", 0.5)]),
        ("dB<-0.02 and p<0.05", [("dB", "<", -0.02), ("p", "<", 0.05)]),
    ],
)
def test_conditions(text: str, expected: list[Any]) -> None:
    assert parse_condition(text) == tuple(Condition(*part) for part in expected)


@pytest.mark.parametrize("text", ["", "ci", "ci>x", "db<1", "|dB|<0.1", "ci>0.1 or p<1", "ci>0.1 and", "ci>1;p<1"])
def test_no_conditions(text: str) -> None:
    with pytest.raises(UserError, match="--fail-on"):
        parse_condition(text)


@pytest.mark.parametrize(
    "text", ["|ci|>-1", "p<1.5", "probability>2", "probability<-0.1", "percentile>101", "ci<1e999"]
)
def test_a_condition_that_every_group_or_none_meets_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--fail-on .* finite number from"):
        parse_condition(text)


def test_a_run_may_be_an_audit_alone() -> None:
    audit = {"reference": "a/b", "audited": ["c"]}
    assert root.from_mapping({"run": "r", "models": {}, "audit": audit}).audit is not None
    with pytest.raises(UserError, match="'models': name at least one"):
        root.from_mapping({"run": "r", "models": {}})
    with pytest.raises(UserError, match=r"'audit.audted': did you mean 'audited'"):
        root.from_mapping({"run": "r", "models": {}, "audit": {**audit, "audted": []}})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"methods": ["seat"]}, "rr"),
        ({"methods": ["rr", "procrustes_seat"], "cross_family": True}, "procrustes_seat"),
        ({"fail_on": ["probability>0.5"]}, "calibration"),
        ({"fail_on": ["x"]}, "--fail-on"),
        ({"dtype": "float16"}, "bfloat16"),
        ({"stimuli": {"pack": "german", "groups_file": "x.tsv"}}, "groups_file"),
        ({"audited": []}, "audited"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        parse(AuditSettings, {"reference": "a", "audited": ["b"], **changes}, "x")


def options(*arguments: str) -> AuditSettings:
    return settings_of(parser().parse_args(["a", "b", *arguments]))


def test_layer_0_is_the_token_embeddings_not_the_default() -> None:
    assert options().represent.layer == "final"
    assert options("--layer", "0").represent.layer == 0
    assert options("--layer", "3").represent.layer == 3


@pytest.mark.parametrize("option", ["--token-budget", "--memory", "--n-targets", "--n-anchors"])
def test_a_number_of_zero_is_refused_not_taken_for_nothing_said(option: str) -> None:
    with pytest.raises(UserError, match="greater than or equal to"):
        options(option, "0")


def result_of(**changes: Any) -> Any:
    data = single()
    for group in data["checkpoints"][0]["groups"]:
        group |= {"delta_b": 0.0, "ci_low": -0.01, "ci_high": 0.01, "net_ci_low": -0.01, "net_ci_high": 0.01}
        group |= {"p_holm": 1.0, "probability": 0.1, "null_percentile": 10.0}
    data["checkpoints"][0]["groups"][2] |= changes
    return AuditResult.model_validate(data)


@pytest.mark.parametrize(
    ("changes", "text", "is_met"),
    [
        ({"ci_low": -0.05, "ci_high": -0.03}, "ci<-0.02", True),
        ({"ci_low": -0.05, "ci_high": -0.01}, "ci<-0.02", False),
        ({"ci_low": 0.03, "ci_high": 0.05}, "ci<-0.02", False),
        ({"ci_low": 0.03, "ci_high": 0.05}, "|ci|>0.02", True),
        ({"ci_low": -0.05, "ci_high": -0.03}, "|ci|>0.02", True),
        ({"net_ci_low": 0.03, "net_ci_high": 0.05}, "net>0.02", True),
        ({"delta_b": -0.03}, "|dB|>0.02", True),
        ({"delta_b": -0.03}, "dB>0.02", False),
        ({"delta_b": -0.03, "p_holm": 0.2}, "dB<-0.02 and p<0.05", False),
        ({"delta_b": -0.03, "p_holm": 0.01}, "dB<-0.02 and p<0.05", True),
        ({"probability": 0.7}, "probability>0.5", True),
        ({"null_percentile": 99.0}, "percentile>95", True),
    ],
)
def test_which_groups_meet_a_condition(changes: dict[str, float], text: str, is_met: bool) -> None:
    result = result_of(**changes)
    group = result.checkpoints[0].groups[2].group
    assert exceeded(result, [text]) == ([(text, result.checkpoints[0].name, group)] if is_met else [])


def test_a_condition_on_what_was_not_computed_is_refused() -> None:
    with pytest.raises(UserError, match="was not computed"):
        exceeded(result_of(probability=None), ["probability>0.5"])
