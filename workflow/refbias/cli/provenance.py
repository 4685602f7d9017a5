"""Say where a run's numbers come from: code, locks, models, data, seeds, hardware, and how to make each table again."""

import argparse
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from refbias import __version__
from refbias.artifacts import Stage, read_json, sha256_file, sha256_tree, write_text
from refbias.benchmarks.decodingtrust import prompt_files
from refbias.codehash import code_hash
from refbias.config.base import parse_json
from refbias.config.pictures import PICTURES
from refbias.config.provenance import ProvenanceStage
from refbias.config.root import Config, from_mapping
from refbias.resources import data_path

MAKES = ("acquire", "finetune", "merge", "represent", "shift", "generate", "score", "analyse", "tables", "figures")
SPLITS = ("unharmful", "harmful")
STIMULI = ("groups", "targets", "attributes", "anchors", "control")
PROMPTS = {
    "wildguardmix": ("wildguardmix_test.jsonl",),
    "decodingtrust": ("decodingtrust_user_prompts.csv", "decodingtrust_system_prompts.csv"),
    "toxigen": ("toxigen",),
}


def commit() -> dict[str, Any]:
    """Return commit and state of the checkout that the working folder lies in, None where there is none."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    changes = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "changed_files": None if changes is None else len(changes.splitlines())}


def code() -> dict[str, Any]:
    """Return version, commit and the hash of the code of every stage."""
    hashes = {stage: code_hash(f"refbias.cli.{stage}") for stage in MAKES}
    return {"version": __version__, **commit(), "stages": hashes}


def locks(folder: Path = Path("envs")) -> dict[str, str]:
    """Return the SHA-256 of every lock of the checkout; empty where the package runs without one."""
    return {path.as_posix(): sha256_file(path) for path in sorted(folder.glob("*.lock"))}


def data_files(config: Config) -> dict[str, dict[str, str]]:
    """Return name and SHA-256 of every data file or folder of a run, the shipped ones in place of unnamed ones."""
    chosen: dict[str, tuple[str | None, tuple[str, ...]]] = {
        f"stimuli/{kind}": (getattr(config.stimuli, f"{kind}_file"), ("stimuli", f"{kind}.tsv")) for kind in STIMULI
    }
    for split in SPLITS:
        chosen[f"splits/{split}"] = (config.split_file(split), ("quickstart", f"wildguard_{split}.jsonl"))
    for name, file in config.prompt_files().items():
        if file:
            chosen[f"prompts/{name}"] = (file, ())
            # of a benchmark whose files are two, the second lies beside the named one
            beside = prompt_files(file)[1:] if name == "decodingtrust" else []
            chosen |= {f"prompts/{name}/{path.name}": (str(path), ()) for path in beside}
        for shipped in PROMPTS[name] if not file else ():
            chosen[f"prompts/{name}/{shipped}"] = (None, ("quickstart", shipped))
    files = {name: config.data_path(name) for name in config.data.entries()} | config.anchor_files()
    chosen |= {f"data/{name}": (file, ()) for name, file in files.items() if file}
    chosen["paper"] = (None, ("paper", "tables.json"))
    found = {}
    for role, (file, parts) in chosen.items():
        path = Path(file) if file else data_path(*parts)
        shown = file if file else f"shipped data/{'/'.join(parts)}"
        found[role] = {"file": shown, "sha256": sha256_tree(path) if path.exists() else "absent"}
    return found


def seeds(value: Any, path: str = "") -> dict[str, Any]:
    """Return every seed of a configuration by its key."""
    found: dict[str, Any] = {}
    for key, inner in value.items() if isinstance(value, dict) else ():
        if "seed" in key:
            found[f"{path}{key}"] = inner
        else:
            found |= seeds(inner, f"{path}{key}.")
    return found


def hardware(manifests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return this machine's parts, and the devices that the stages say they ran on."""
    recorded: dict[str, set[str]] = {}
    for role, manifest in manifests.items():
        names = [manifest.get("device"), *manifest.get("platform", {}).get("accelerators", [])]
        recorded.setdefault(role.partition("/")[0], set()).update(name for name in names if name)
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "processors": os.cpu_count(),
        "memory_mb": round(psutil.virtual_memory().total / 1e6),
        "devices": {stage: sorted(names) for stage, names in sorted(recorded.items()) if names},
    }


def commands(settings: ProvenanceStage) -> dict[str, str]:
    """Return the command that makes each table and figure, empty for those the run lacks."""
    # the target goes first: `--configfile` takes all that follows it
    options = f"--cores 1 --resources gpu=1 --configfile {settings.config_file}"
    return {name: "" if settings.lacks.get(name) else f"snakemake {name} {options}" for name in PICTURES}


def reproduce(settings: ProvenanceStage, facts: Mapping[str, Any]) -> str:
    """Return the text of ``reproduce.md``."""
    made = facts["code"]
    version = made["commit"] or "no checkout"
    if made["changed_files"]:
        version += f" with {made['changed_files']} changed files"
    whole = f"snakemake --cores 1 --resources gpu=1 --configfile {settings.config_file}"
    rows = [
        (name.replace("_", " "), PICTURES[name].title, f"`{command}`" if command else settings.lacks[name])
        for name, command in facts["commands"].items()
    ]
    models = [(slug, _revision(model)) for slug, model in facts["models"].items()]
    data = [(role, entry["file"], entry["sha256"][:16]) for role, entry in facts["data"].items()]
    return "\n".join(
        [
            f"# How to make the run {settings.run} again",
            "",
            f"Code: refbias {made['version']}, commit {version}.",
            "",
            f"The whole run: `{whole}`. A table or figure alone, from stored results, without GPU, models or network:",
            "",
            _table(("Picture", "Shows", "Command"), rows),
            "## Models",
            "",
            _table(("Model", "Source"), models),
            "## Data",
            "",
            _table(("Role", "File", "SHA-256 (first 16)"), data),
            "## Seeds",
            "",
            _table(("Key", "Value"), [(key, str(value)) for key, value in facts["seeds"].items()]),
            "## Locks",
            "",
            _table(("File", "SHA-256"), list(facts["locks"].items())) if facts["locks"] else "No checkout at hand.\n",
        ]
    )


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    cells = [headers, ("---",) * len(headers), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in cells)


def _revision(model: Mapping[str, Any]) -> str:
    source = model["source"]
    parts = [f"{key} {source[key]}" for key in ("id", "revision", "path", "package", "sha256") if source.get(key)]
    return ", ".join(parts)


def main(argv: list[str]) -> None:
    """Write ``reproduce.md`` and, last, the run's ``manifest.json``."""
    parser = argparse.ArgumentParser(prog="refbias provenance", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--manifests", type=Path, required=True, help="manifests.json of the records")
    parser.add_argument("--tables", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--output", type=Path, required=True, help="the run's folder")
    options = parser.parse_args(argv)
    settings = parse_json(ProvenanceStage, options.settings, "--settings")
    manifests: dict[str, dict[str, Any]] = read_json(options.manifests)
    inputs = {"manifests": options.manifests}
    inputs |= {path.name: path for path in sorted(options.tables.glob("*.csv"))}
    with Stage("provenance", settings.model_dump(mode="json"), options.output, inputs) as stage:
        facts: dict[str, Any] = {
            "code": code(),
            "locks": locks(),
            "models": {
                slug: {
                    "source": settings.config["models"][slug]["source"],
                    "acquired": manifests.get(f"acquire/{slug}", {}).get("source"),
                    "weights_sha256": manifests.get(f"acquire/{slug}", {}).get("weights_sha256"),
                }
                for slug in settings.models
            },
            "data": data_files(from_mapping(settings.config, "--settings")),
            "seeds": seeds(settings.config),
            "hardware": hardware(manifests),
            "commands": commands(settings),
        }
        write_text(options.output / "reproduce.md", reproduce(settings, facts))
        stage.record(**facts)
