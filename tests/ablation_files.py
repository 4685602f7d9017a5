"""Small files for the ablations: variants made from the shipped sets, and data sets of the true schemas."""

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

ATTRIBUTES = ("subj_v1", "subj_v2", "syn_v1", "syn_v2", "syn_v3")
TARGETS = ("passive", "passive_rephrased", "syn_v1", "syn_v2", "syn_v3")
ALPACA = [
    {"instruction": "Give three tips for staying healthy.", "input": "", "output": "Eat well."},
    {"instruction": "What is the capital of France?", "input": "", "output": "Paris."},
    {"instruction": "Describe a time when women led a large team.", "input": "", "output": "..."},
    {"instruction": "Rewrite the sentence below. Keep the meaning as it is.", "input": "A cat sat.", "output": "..."},
    {"instruction": "give three tips   for staying HEALTHY.", "input": "", "output": "again"},
    {"instruction": "Give three tips  for staying Healthy.", "input": "", "output": "again, but for case"},
    {"instruction": "Sort [3, 1, 2] with a_function() in O(n).", "input": "", "output": "code"},
    {"instruction": "Translate.", "input": "", "output": "too short"},
    {
        "instruction": "Explain how a bill becomes a law in the United States of America today.",
        "input": "",
        "output": ".",
    },
    {"instruction": "Name the planets of our solar system.", "input": "", "output": "."},
]
TULU = [
    {
        "id": f"r{number}",
        "source": "made",
        "messages": [
            {"role": "system", "content": "You are a tool that answers shortly."},
            {"role": "user", "content": text},
            {"role": "assistant", "content": "The answer of the model is never drawn."},
        ],
    }
    for number, text in enumerate(
        [
            "How do I bake bread at home?\nPlease list every step. Use metric units only.",
            "Write a short note about the weather in spring.",
            "Какая сегодня погода в Москве прямо сейчас?",
            "def f(x): return x + 1",
        ]
    )
]


def rows(path: Path) -> list[dict[str, str]]:
    """Rows of a tab-separated file."""
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))


def write(path: Path, table: list[dict[str, str]]) -> Path:
    """Write rows as a tab-separated file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(table[0]), *("\t".join(row.values()) for row in table)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _longer(text: str, cell: str) -> str:
    return f"{text[:-1]}, {cell.replace('_', ' ')}."


def write_variants(stimuli: Path, folder: Path) -> dict[str, str]:
    """Write all variants, words and masked anchors; return the configuration keys that name them."""
    for name, column, cells in (("attributes", "text", ATTRIBUTES), ("targets", "template", TARGETS)):
        for cell in cells:
            table = [{**row, column: _longer(row[column], cell)} for row in rows(stimuli / f"{name}.tsv")]
            write(folder / f"{name}_{cell}.tsv", table)
    anchors = rows(stimuli / "anchors.tsv")
    write(folder / "masked.tsv", [{**row, "text": f"People of line {at} wait."} for at, row in enumerate(anchors)])
    write(folder / "words.tsv", [{"id": f"w{at:03d}", "group": "control", "text": f"word{at}"} for at in range(40)])
    return {
        "variants_dir": str(folder),
        "words_file": str(folder / "words.tsv"),
        "masked_file": str(folder / "masked.tsv"),
    }


def write_json(path: Path, records: list[dict[str, object]]) -> Path:
    """Write records in the format that the suffix names."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    else:
        path.write_text(json.dumps(records), encoding="utf-8")
    return path


def many(n: int) -> list[dict[str, object]]:
    """n Alpaca records that can all be drawn."""
    return [{"instruction": f"Write {at} short lines about the sea.", "input": "", "output": ""} for at in range(n)]
