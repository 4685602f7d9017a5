"""What the smoke run needs and no package carries, in the formats of the real things: tiny random
models of the paper's architectures, a tiny classifier, and the data sets with the shipped own text.

``python -m tests.smoke_inputs FOLDER`` writes what is not there yet.
"""

import csv
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from tests.tiny import build_tiny
from tests.tiny_classifier import build_roberta

DATA = Path(__file__).resolve().parent.parent / "data"
ANCHORS = 400  # sentences of either instruction data set


def rows(name: str) -> list[dict[str, Any]]:
    text = (DATA / "quickstart" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def build_wildguardmix(folder: Path) -> None:
    """Parquet as the hub has it: no ids, no topics, no tags of ours."""
    parts = {
        "train/wildguard_train.parquet": rows("wildguard_unharmful.jsonl") + rows("wildguard_harmful.jsonl"),
        "test/wildguard_test.parquet": rows("wildguardmix_test.jsonl"),
    }
    for name, part in parts.items():
        (folder / name).parent.mkdir(parents=True)
        own = ("id", "topic", "template")
        table = pyarrow.Table.from_pylist([{key: row[key] for key in row if key not in own} for row in part])
        pyarrow.parquet.write_table(table, folder / name)


def build_decodingtrust(folder: Path) -> None:
    folder.mkdir()
    for name in ("user_prompts", "system_prompts"):
        shutil.copyfile(DATA / "quickstart" / f"decodingtrust_{name}.csv", folder / f"{name}.csv")


def build_toxigen(folder: Path) -> None:
    shutil.copytree(DATA / "quickstart" / "toxigen", folder)


def sentences() -> list[str]:
    with (DATA / "stimuli" / "anchors.tsv").open(encoding="utf-8", newline="") as handle:
        return [row["text"] for row in csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE)]


def build_alpaca(path: Path) -> None:
    found = [{"instruction": text, "input": "", "output": "Yes."} for text in sentences()[:ANCHORS]]
    path.write_text(json.dumps(found), encoding="utf-8")


def build_tulu(path: Path) -> None:
    lines = [
        {"id": f"t{number}", "messages": [{"role": "user", "content": text}], "source": "own"}
        for number, text in enumerate(sentences()[-ANCHORS:])
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


BUILDERS: dict[str, Callable[[Path], object]] = {
    # of one seed the first two would be the same model
    "llama": lambda folder: build_tiny("llama", folder, seed=0),
    "mistral": lambda folder: build_tiny("mistral", folder, seed=1),
    "gemma3": lambda folder: build_tiny("gemma3", folder, seed=2),
    "roberta": build_roberta,
    "wildguardmix": build_wildguardmix,
    "decodingtrust": build_decodingtrust,
    "toxigen": build_toxigen,
    "alpaca.json": build_alpaca,
    "tulu.jsonl": build_tulu,
}


def build(folder: Path) -> None:
    """Write all inputs into `folder`; one that is there stays, so that nothing reruns."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, builder in BUILDERS.items():
        if not (folder / name).exists():
            # a build that was cut short is not there
            half = folder / f".{name}"
            shutil.rmtree(half, ignore_errors=True)
            half.unlink(missing_ok=True)
            builder(half)
            half.rename(folder / name)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
