import json
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from refbias.cli import report as command
from refbias.config.pictures import FIGURES
from refbias.config.report import ReportStage
from refbias.errors import UserError
from refbias.report import findings, load, render, sentences
from refbias.report.pictures import caption
from refbias.tables import table1
from refbias.tables.formats import shift
from tests.unit import picture_data as data

# a 1 x 1 pixel PNG: the figures themselves are tested elsewhere
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)
KINDS = ("figure2", "roc", "auc_threshold", "spectrum")


def stage(**changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "run": "demo",
        "title": "",
        "note": "A note for the reader.",
        "seed": 17,
        "models": {"tiny": {"kind": "packaged_gguf"}},
        "regimes": ["full", "lora"],
        "weights": data.WEIGHTS,
        "splits": {"unharmful": None, "harmful": None},
        "stimuli": {"targets": 20, "attributes": 40, "anchors": 250, "control": 20},
        "compute": {"dtype": "float32"},
        "benchmarks": {
            name: {
                "scorer": scorer,
                "threshold": data.THRESHOLDS[name],
                "prompts": None,
                "samples": 8,
                "temperature": 0.7,
                "top_p": 1.0,
                "max_new_tokens": 48,
            }
            for name, scorer in data.SCORERS.items()
        },
        "lacks": data.lacks(()),
        "analysis_resamples": 1000,
        "shift_resamples": 2000,
        "config_text": "run: demo\nseed: 17\n",
    }
    return {**settings, **changes}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    data.write_run(root)
    figures = root / "figures" / "demo"
    figures.mkdir(parents=True)
    for name in [*(f"{kind}_tiny_{regime}" for kind in KINDS for regime in ("full", "lora")), "loss_tiny"]:
        (figures / f"{name}.png").write_bytes(PIXEL)
        (figures / f"{name}.pdf").write_bytes(b"%PDF")
    return root


def write(root: Path, name: str = "report.html", records: str = "records", **changes: Any) -> str:
    results = root / "results" / "demo"
    output = results / name
    command.main(
        [
            "--settings",
            json.dumps(stage(**changes)),
            "--tables",
            str(results / "tables"),
            "--figures",
            str(root / "figures" / "demo"),
            "--shift",
            str(results / "shift"),
            "--records",
            str(results / records),
            "--output",
            str(output),
        ]
    )
    return output.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return write(run)


class Page(HTMLParser):
    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.words.append(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_page_is_well_formed_and_accessible(page: str) -> None:
    parsed = Page(page)
    assert not parsed.open
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert ("html", {"lang": "en"}) in parsed.tags
    names = [tag for tag, _ in parsed.tags]
    assert names.count("h1") == names.count("main") == 1
    assert names.count("table") == names.count("caption")
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in parsed.tags if tag == "th")
    assert all(len(attrs.get("alt") or "") > 20 for tag, attrs in parsed.tags if tag == "img")
    assert names.count("img") == 9
    for tag, attrs in parsed.tags:
        for name in ("aria-labelledby",):
            assert name not in attrs or attrs[name] in ids
        if tag == "a" and (attrs["href"] or "").startswith("#"):
            assert (attrs["href"] or "")[1:] in ids


def test_page_asks_nothing_of_the_network(page: str) -> None:
    parsed = Page(page)
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for _, attrs in parsed.tags:
        for name, value in attrs.items():
            if name in ("src", "href", "action", "data", "srcset", "poster"):
                assert (value or "").startswith(("data:image/png", "#", "tables/", "shift/", "../../figures/"))
            assert not name.startswith("on")
    assert "://" not in page
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_links_lead_to_files(run: Path, page: str) -> None:
    folder = run / "results" / "demo"
    links = [attrs["href"] or "" for tag, attrs in Page(page).tags if tag == "a"]
    files = [link for link in links if not link.startswith("#")]
    assert {"tables/table1.csv", "tables/observations.csv", "tables/units.csv", "shift/delta_b.csv"} <= set(files)
    assert "../../figures/demo/figure2_tiny_full.pdf" in files
    assert all((folder / link).is_file() for link in files)


def test_every_cell_of_table1_is_shown(run: Path, page: str) -> None:
    frame = pd.read_csv(run / "results/demo/tables/table1.csv")
    words = [" ".join(word.split()) for word in Page(page).words]
    for row in table1(frame).rows:
        for cell in row:
            assert not cell or " ".join(cell.split()) in words


def test_groups_units_and_run_facts_are_shown(run: Path, page: str) -> None:
    text = Page(page).text
    shifts = pd.read_csv(run / "results/demo/shift/delta_b.csv")
    for value in shifts.loc[shifts["harmful_weight"] == 1.0, "delta_b"]:
        assert shift(value) in text
    assert text.count("Group-free control") >= 4
    for expected in (
        "These numbers are not the paper's.",
        "A note for the reader.",
        "standin_valence",
        "held-out own sentences",
        "hand-labelled outputs",
        "0.78",  # the scorer's AUC there
        "MAE out-of-bag",
        "fell",
        "8 min 40 s",  # four trainings of 130 s
        "812 MB",
        "2.13.0",
        "run: demo seed: 17",
        "250 anchors",
        "a third party's 4-bit GGUF repackaging",
        "No text written by a model is shown on this page.",
    ):
        assert expected in text
    units = pd.read_csv(run / "results/demo/tables/units.csv")
    rows = sum(tag == "tr" for tag, _ in Page(page).tags)
    assert rows > len(units)


def test_findings_follow_the_numbers() -> None:
    base = {
        "benchmark": "decodingtrust",
        "method": "rr",
        "n": 168,
        "pearson_r": -0.4,
        "pearson_p": 0.0001,
        "threshold": 0.1,
        "n_positive": 20,
        "roc_auc": 0.8,
        "roc_auc_ci_low": 0.6,
        "roc_auc_ci_high": 0.9,
        "note": "",
    }

    def said(**changes: object) -> str:
        return sentences.relation(pd.Series({**base, **changes}))

    assert "excludes 0: a lower dB went with a higher agreement rate" in said(pearson_ci_low=-0.6, pearson_ci_high=-0.1)
    assert "r = −0.40 over 168 pairs, 95 % CI [−0.60, −0.10], p < 0.001" in said(
        pearson_ci_low=-0.6, pearson_ci_high=-0.1
    )
    assert "includes 0: no relation is shown" in said(pearson_ci_low=-0.6, pearson_ci_high=0.1)
    assert "excludes 0: a lower dB went with a lower agreement rate" in said(
        pearson_r=0.4, pearson_ci_low=0.1, pearson_ci_high=0.6
    )
    bounds = {"pearson_ci_low": -0.6, "pearson_ci_high": 0.1}
    assert "AUC 0.80 [0.60, 0.90], above chance (20 of 168 above 0.1)" in said(**bounds)
    assert "not told from chance" in said(**bounds, roc_auc_ci_low=0.45)
    assert "below chance" in said(**bounds, roc_auc_ci_low=0.1, roc_auc_ci_high=0.3)
    nan = float("nan")
    gone = said(pearson_r=nan, pearson_ci_low=nan, pearson_ci_high=nan, roc_auc=nan, note="one class only")
    assert "no correlation could be computed (one class only)" in gone
    assert "No AUC" in gone
    assert "without an interval" in said(pearson_ci_low=nan, pearson_ci_high=nan, roc_auc_ci_low=nan)


def test_control_sentence_counts_groups() -> None:
    rows = pd.DataFrame(
        {
            "group": ["a", "b", "c", "control"],
            "delta_b": [-0.5, -0.1, 0.4, -0.1],
            "ci_low": [-0.6, -0.3, 0.3, -0.2],
            "ci_high": [-0.4, 0.1, 0.5, -0.05],
        }
    )
    text = sentences.control(rows, "rr")
    assert "of 3 groups, 1 have an interval below 0 and 1 above 0" in text
    assert "moved by −0.1000 [−0.2000, −0.0500]" in text
    assert "1 have an interval wholly below the control's, 1 wholly above, and 1 overlap it" in text
    assert "no group-free control" in sentences.control(rows[rows["group"] != "control"], "rr")


def test_tally_counts_rows() -> None:
    frame = pd.DataFrame(
        {
            "method": ["rr"] * 4 + ["seat"],
            "pearson_ci_low": [-0.6, 0.1, -0.2, float("nan"), -0.5],
            "pearson_ci_high": [-0.1, 0.6, 0.2, float("nan"), -0.4],
        }
    )
    assert sentences.tally(frame, "rr") == (
        "RR: of 4 rows of Table 1, r is below 0 with an interval that excludes 0 in 1, above 0 likewise in 1, "
        "and the interval includes 0 in 1; 1 without an interval."
    )


def test_stand_ins_are_named_only_where_used() -> None:
    settings = ReportStage.model_validate(stage())
    text = " ".join(sentences.stand_ins(settings))
    assert "in place of the scorer of WildGuardMix and ToxiGen" in text
    assert "270M" in text
    real = stage(
        models={"big": {"kind": "hub", "id": "owner/model", "revision": "abc"}},
        splits={"unharmful": "u.jsonl", "harmful": "h.jsonl"},
    )
    for facts in real["benchmarks"].values():
        facts |= {"prompts": "prompts.csv", "scorer": "wildguard"}
    settings = ReportStage.model_validate(real)
    assert sentences.stand_ins(settings) == []
    assert not any("stand-in" in line or "270M" in line or "mild" in line for line in sentences.limits(settings))


def test_hostile_text_is_escaped(run: Path) -> None:
    hostile = "<script>alert('x')</script><img src=x onerror=y>"
    text = write(
        run,
        "hostile.html",
        title=hostile,
        note=hostile,
        run=hostile,
        config_text=hostile,
        splits={hostile: hostile},
    )
    parsed = Page(text)
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert sum(tag == "img" for tag, _ in parsed.tags) == 9
    assert hostile in parsed.text


def test_hostile_table_cells_are_escaped(run: Path, tmp_path: Path) -> None:
    results = run / "results" / "demo"
    loaded = load(results / "tables", run / "figures/demo", results / "shift", results / "records", results / "r.html")
    loaded.table1.loc[0, "note"] = "</td><script>alert(1)</script>"
    loaded.units.loc[0, "unit"] = "<b>unit</b>"
    text = render(ReportStage.model_validate(stage()), loaded)
    tags = {tag for tag, _ in Page(text).tags}
    assert "script" not in tags
    assert "<b>unit</b>" not in text


def test_report_repeats_byte_for_byte(run: Path, page: str) -> None:
    assert write(run, "again.html") == page


def test_report_without_training(run: Path) -> None:
    shutil.copytree(run / "results/demo/records", run / "results/demo/untrained")
    path = run / "results/demo/untrained/manifests.json"
    manifests = json.loads(path.read_text())
    path.write_text(
        json.dumps({role: m for role, m in manifests.items() if not role.startswith(("training", "score"))})
    )
    (path.parent / "losses.csv").write_text("model,regime,split,step,loss\n")
    text = write(run, "untrained.html", records="untrained")
    assert "Nothing was trained in this run." in text
    assert "No scorer was fitted in this run" in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("missing", None, "no such figure"), ("broken", b"GIF89a", "not a PNG")],
)
def test_figures_are_checked(run: Path, tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    results = run / "results" / "demo"
    if content:
        (tmp_path / "figure2_tiny_full.png").write_bytes(content)
    loaded = load(results / "tables", tmp_path, results / "shift", results / "records", results / "r.html")
    with pytest.raises(UserError, match=message):
        render(ReportStage.model_validate(stage()), loaded)


def test_the_papers_tables_claims_and_figures_are_shown(run: Path, page: str) -> None:
    text = Page(page).text
    assert "Table 2: Target groups and their topics" in text
    assert "Table 3: Cost in minutes" in text
    assert "0 of 18 cells in this run" in text
    assert "Figure 11" in text
    assert "not run (not part of this run: LoRA)" in text
    folder = run / "figures" / "demo"
    lacks = data.lacks()
    stems = [figure.stem for figure in FIGURES if figure.name != "figure_2" and not lacks[figure.name]]
    for stem in stems:
        (folder / f"{stem}.png").write_bytes(PIXEL)
    parsed = Page(write(run, "figures.html", lacks=lacks))
    assert sum(tag == "img" for tag, _ in parsed.tags) == 9 + len(stems) == 9 + 12
    assert "Figure 9: DecodingTrust, full fine-tuning: units by number" in parsed.text
    assert "not run (not part of this run: the training seeds)" in parsed.text


def test_findings_are_one_a_benchmark_and_regime(run: Path) -> None:
    results = run / "results" / "demo"
    loaded = load(results / "tables", run / "figures/demo", results / "shift", results / "records", results / "r.html")
    found = list(findings(loaded))
    assert [finding.title for finding in found[:2]] == [
        "WildGuardMix, tiny, full fine-tuning",
        "WildGuardMix, tiny, LoRA",
    ]
    assert [len(finding.sentences) for finding in found] == [2] * 6


def test_captions_ship() -> None:
    for kind in (*KINDS, "loss", "table1", "observations", "units", "delta_b", "report"):
        text = caption(kind)
        assert len(text) > 40
        assert "``" not in text


def test_pictures_need_no_torch() -> None:
    code = (
        "import sys; import refbias.cli.figures, refbias.cli.report; "
        "sys.exit(any(name.split('.')[0] in ('torch', 'transformers') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(_package_root())})


def _package_root() -> Path:
    import refbias

    return Path(refbias.__file__).resolve().parent.parent
