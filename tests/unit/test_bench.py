"""The parts of the bench that do not measure: what it makes of the measurements."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import __main__ as main
from bench import auditing, measure, picture
from bench.auditing import Answer, audit_results, changed_copy, gap, spectrum_results
from bench.contestants import peak_mb
from bench.costs import Cost, exponent, fitted
from bench.measure import Result
from matplotlib.figure import Figure
from PIL import Image

from tests.tiny import build_tiny


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.3])
def test_the_exponent_of_a_power_law_is_its_power(power: float) -> None:
    sizes = [2, 4, 9, 31]
    assert exponent(sizes, [0.3 * size**power for size in sizes]) == pytest.approx(power)


def test_the_exponent_is_the_least_squares_line() -> None:
    random = np.random.default_rng(0)
    sizes, seconds = [1, 2, 4, 8, 16], np.exp(random.standard_normal(5)).tolist()
    slope, _ = np.polyfit(np.log(sizes), np.log(seconds), 1)
    assert exponent(sizes, seconds) == pytest.approx(slope)


@pytest.mark.parametrize(
    ("sizes", "seconds"), [([4, 4], [1.0, 2.0]), ([4], [1.0]), ([1, 2], [1.0]), ([1, 2], [1.0, 0.0]), ([0, 2], [1, 1])]
)
def test_an_exponent_needs_two_sizes_and_positive_times(sizes: list[int], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="sizes"):
        exponent(sizes, seconds)


def test_each_axis_of_cost_is_a_line() -> None:
    costs = [Cost("layers", n, 0.1 * n) for n in (2, 4, 8)] + [Cost("groups", n, 0.5) for n in (3, 6)]
    lines = {line.measure: line for line in fitted(costs)}
    assert lines["cost: exponent in layers"].ours == pytest.approx(1.0)
    assert lines["cost: exponent in groups"].ours == pytest.approx(0.0)
    assert lines["cost: exponent in layers"].note == "2: 0.20 s, 4: 0.40 s, 8: 0.80 s"


def test_turns_alternate_and_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    clock = [0.0]
    costs = {"a": iter([9.0, 1.0, 5.0, 2.0]), "b": iter([9.0, 10.0, 10.0, 40.0])}

    def contestant(name: str) -> Any:
        def run(_: object) -> None:
            order.append(name)
            clock[0] += next(costs[name])

        return run

    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])
    seconds = measure.take_turns({name: contestant(name) for name in "ab"}, [None], 3)
    # the first round is not measured
    assert order == list("ab" + "ab" + "ba" + "ab")
    assert seconds == {"a": 2.0, "b": 10.0}


def test_processes_take_turns_and_only_a_cold_one_loses_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, bool]] = []

    def run(job: dict[str, Any], cache: Path) -> None:
        order.append((job["contestant"], cache.exists()))
        cache.mkdir(exist_ok=True)
        auditing.save_file({"audited": auditing.torch.ones(1, 2)}, job["keep"])
        seconds = float(len(order))
        Path(job["answer"]).write_text(json.dumps({"seconds": seconds, "peak_mb": -seconds, "notes": {}}))

    monkeypatch.setattr(auditing, "_run", run)
    jobs = {"cold": {"cache": "one", "contestant": "c"}, "warm": {"cache": "one", "contestant": "w"}}
    found = auditing.in_turns({**jobs, "other": {"contestant": "o"}}, 2, ["cold"])
    assert order == [("c", False), ("w", True), ("o", False), ("o", True), ("w", True), ("c", False)]
    assert found["cold"].seconds == (1 + 6) / 2
    assert found["cold"].peak_mb == -1


def test_the_gap_is_relative_and_names_must_agree() -> None:
    ours = {"a": np.array([[1.0, -4.0]]), "b": np.array([[2.0, 0.0]])}
    theirs = {"a": np.array([[1.5, -4.0]]), "b": np.array([[2.0, 1.0]])}
    assert gap(ours, theirs) == 0.25
    with pytest.raises(ValueError, match="not the same"):
        gap(ours, {"a": theirs["a"]})


def answer(seconds: float, peak: float = 1000.0, shift: float = 0.0, **notes: Any) -> Answer:
    return Answer(seconds, peak, {"delta_b": {"g": shift}, **notes}, {"audited": np.full((2, 2), 1 + shift)})


def audits(**more: Answer) -> dict[str, Answer]:
    parts = {"read": 1.0, "embed": 2.0, "statistics": 1.0}
    return {
        "cold": answer(4.0, 500.0, parts=parts, from_cache=False),
        "warm": answer(2.0, 500.0, parts=parts, from_cache=True),
        "padded": answer(12.0, 2000.0),
        **more,
    }


def test_an_audits_lines_hold_the_ratios() -> None:
    lines = {line.measure: line for line in audit_results(audits(other=answer(8.0), bfloat16=answer(1.0, shift=-0.01)))}
    assert lines["audit, cold: padded whole-model loop"].ratio == 3.0
    assert lines["audit, warm: padded whole-model loop"].ratio == 6.0
    assert lines["audit, warm: sentence-transformers"].ratio == 4.0
    assert lines["audit, cold: float32 instead of bfloat16"].ratio == 4.0
    assert "at most 1.0e-02" in lines["audit, cold: float32 instead of bfloat16"].note
    assert lines["memory of an audit: padded whole-model loop"].ratio == 4.0


def test_an_absent_contestant_is_said_and_has_no_ratio() -> None:
    (line,) = [line for line in audit_results(audits()) if "cold: sentence-transformers" in line.measure]
    assert (line.ratio, line.baseline) == (None, None)
    assert "not installed" in line.note


def test_a_warm_audit_that_was_cold_is_no_result() -> None:
    found = audits()
    found["warm"].notes["from_cache"] = False
    with pytest.raises(ValueError, match="warm"):
        audit_results(found)


def test_a_spectrums_lines_hold_the_ratios() -> None:
    found = {
        "streamed": answer(10.0, 1300.0, read_mb=8),
        "files": answer(30.0, 2600.0, written_mb=5),
        "in_place": answer(11.0, 5200.0),
    }
    for name in found:
        found[name].notes.pop("delta_b")
    lines = {line.measure: line for line in spectrum_results(found)}
    assert lines["spectrum, streamed: merged files"].ratio == 3.0
    assert lines["spectrum, streamed: merged files"].note.startswith("1 checkpoints; read 8 MB, written 5 MB")
    assert lines["memory of a spectrum: whole model, merged in place"].ratio == 4.0


def test_the_peak_is_the_processes_own() -> None:
    assert peak_mb("Name:\tpython\nVmHWM:\t   2000 kB\nVmRSS:\t 10 kB\n") == 2.048


def test_a_changed_copy_keeps_what_is_no_matrix(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    source = build_tiny("llama", tmp_path / "source", 0)
    target = changed_copy(source, tmp_path / "target", 1)
    before, after = (load_file(folder / "model.safetensors") for folder in (source, target))
    for name, value in before.items():
        assert bool((value == after[name]).all()) is (value.ndim == 1), name
    assert json.loads((target / "config.json").read_text()) == json.loads((source / "config.json").read_text())
    written = (target / "model.safetensors").stat().st_mtime_ns
    changed_copy(source, target, 1)
    assert (target / "model.safetensors").stat().st_mtime_ns == written


RESULTS = [
    Result("audit: cold", 4.0, 12.0, "s", 3.0, "> 1", ""),
    Result("cost: exponent in layers", 1.02, 1.0, "power", None, "<= 1.1", ""),
]


def test_tables_and_plot_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = [Cost("layers", 2, 0.25), Cost("layers", 4, 0.5)]
    main.write(tmp_path, RESULTS, costs)
    rows = list(csv.DictReader((tmp_path / "bench.csv").open()))
    assert [row["ratio"] for row in rows] == ["3.0", ""]
    assert [row["seconds"] for row in csv.DictReader((tmp_path / "costs.csv").open())] == ["0.25", "0.5"]
    with Image.open(tmp_path / "bench.png") as image:
        assert min(image.size) > 300
    assert capsys.readouterr().out.count("written to") == 4


@pytest.mark.parametrize("results", [[], RESULTS])
def test_a_plot_says_what_is_not_there(tmp_path: Path, results: list[Result]) -> None:
    assert [path.is_file() for path in picture.draw(results, [], tmp_path / "plot")] == [True, True]


def test_the_plot_reads_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []

    def kept(figure: Figure, stem: Path) -> list[Path]:
        figure.draw_without_rendering()
        drawn.append(figure)
        return []

    monkeypatch.setattr(picture, "save", kept)
    slower = Result("audit: warm", 4.0, 2.0, "s", 0.5, "> 1", "")
    picture.draw([*RESULTS, slower], [Cost("layers", 2, 0.25), Cost("layers", 20, 2.0)], tmp_path / "plot")
    bars, curves = drawn[0].axes
    ticks = [bars.get_xticklabels(), curves.get_xticklabels(), curves.get_yticklabels()]
    for labels in ticks:
        assert {"1", "2", "5"} <= {label.get_text() for label in labels}
    assert not any("$" in label.get_text() for labels in ticks for label in labels)
    assert [(bar.get_x(), bar.get_width()) for bar in bars.containers[0]] == [(1.0, 2.0), (1.0, -0.5)]
    frame, ends = drawn[0].bbox, [text.get_window_extent() for text in bars.texts]
    assert all(frame.x0 < end.x0 and end.x1 < bars.get_window_extent().x1 for end in ends), "texts within the panel"


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (12345.6, "12346"), (1.02345, "1.02"), (0.0123, "0.0123")])
def test_numbers_in_the_table(value: float | None, text: str) -> None:
    assert main.shown(value) == text
