"""What a plan knows of a user's own files: weights, prompts and variants by what is in them, interpreters by name."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from refbias.config import root as settings
from refbias.resources import data_path
from tests.workflow.conftest import Checkout, make_checkout

MODEL = ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture(scope="module")
def fresh(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    checkout = make_checkout(root, tmp_path_factory.mktemp("inputs"))
    places = {"models/gemma3_text": MODEL, "ends/u": ADAPTER, "ends/h": ADAPTER}
    for folder, names in places.items():
        (checkout.path / folder).mkdir(parents=True)
        for name in names:
            (checkout.path / folder / name).write_text("{}")
    return checkout


def configured(checkout: Checkout, root: Path, **changes: Any) -> None:
    config = yaml.safe_load((root / "tests" / "workflow" / "tiny.yaml").read_text())
    (checkout.path / "config" / "tiny.yaml").write_text(yaml.safe_dump({**config, **changes}))


def inputs(output: str, rule: str) -> set[str]:
    """Inputs of all jobs of a rule, as a dry run lists them."""
    found = re.findall(rf"^(?:local)?rule {rule}:\n    input: (.*)$", output, re.MULTILINE)
    return {name for line in found for name in line.split(", ")}


def test_every_file_of_a_local_model_and_a_ready_made_endpoint_is_waited_for(fresh: Checkout, root: Path) -> None:
    ends = {"lora": {"unharmful": "ends/u", "harmful": "ends/h"}}
    source = {"kind": "local", "path": "models/gemma3_text"}
    configured(fresh, root, models={"m": {"source": source, "endpoints": ends}}, regimes={"full": None})
    output = fresh.snakemake("--dry-run").stdout
    assert inputs(output, "acquire") == {f"models/gemma3_text/{name}" for name in MODEL}
    files = {f"ends/{side}/{name}" for side in "uh" for name in ADAPTER}
    assert inputs(output, "merge_lora") == files
    assert files <= inputs(output, "represent")
    assert files <= inputs(output, "generate")


def test_judges_that_vllm_runs_get_its_interpreter(fresh: Checkout, root: Path) -> None:
    benchmarks = {name: {"scorer": "wildguard"} for name in ("wildguardmix", "toxigen")}
    guard = {"kind": "local", "path": "models/gemma3_text"}
    configured(
        fresh,
        root,
        scorers={"wildguard": {"backend": "vllm", "model": guard}},
        benchmarks={**benchmarks, "decodingtrust": None},
        generation={"backend": "vllm", "interpreter": "/opt/vllm/bin/python"},
        metamorphic={"judge": {"which": "unsure", "directory": "models/gemma3_text"}, "subjects": "reference"},
        competence={"checkpoints": [], "axis": {"benchmark": "toxigen"}},
    )
    done = fresh.snakemake("competence", "metamorphic", "--dry-run", "--printshellcmds")
    commands = re.findall(r"python -m refbias (.*)$", done.stdout + done.stderr, re.MULTILINE)
    for stage in ("competence axis", "metamorphic evaluate"):
        found = [command for command in commands if command.startswith(f"{stage} ")]
        assert found, stage
        assert all(" --vllm-python /opt/vllm/bin/python " in command for command in found), stage


@pytest.mark.parametrize("key", ["regimes", "benchmarks"])
def test_a_run_of_nothing_but_a_lens_has_its_target(fresh: Checkout, root: Path, key: str) -> None:
    names = {"regimes": ("full", "lora"), "benchmarks": ("wildguardmix", "decodingtrust", "toxigen")}
    configured(fresh, root, **{key: dict.fromkeys(names[key])})
    assert fresh.would_run("metamorphic")["metamorphic"] == 1
    done = fresh.snakemake("--dry-run", check=False)
    assert done.returncode != 0
    assert f"key '{key}': all of them are null" in done.stdout + done.stderr


def test_a_file_without_models_is_not_the_quickstart_under_another_name(fresh: Checkout) -> None:
    (fresh.path / "config" / "tiny.yaml").write_text("run: mine\nseed: 4\n")
    done = fresh.snakemake("--dry-run", check=False)
    assert done.returncode != 0
    assert "key 'models' is missing" in done.stdout + done.stderr


# --- hashes that parameters hold ----------------------------------------------------------------------------------


def lookups(root: Path, config: settings.Config, *names: str) -> SimpleNamespace:
    """Functions of the rules' look-ups, run as the workflow runs them but for Snakemake's own names."""
    names_there: dict[str, Any] = {"CONFIG": config, "BENCHMARKS": list(config.benchmarks.enabled()), "Path": Path}
    names_there |= {"settings": settings, "RESULTS": "results/r", "fetched": lambda *_: []}
    for name in ("content", *names):
        path = root / "workflow" / "rules" / "lookups" / f"{name}.smk"
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names_there)  # noqa: S102 - the checkout's own
    return SimpleNamespace(**names_there)


def config_of(**changes: Any) -> settings.Config:
    return settings.from_mapping({"run": "r", "models": {"m": {"source": {"kind": "packaged_gguf"}}}, **changes})


def test_system_prompts_beside_the_named_user_prompts_count(root: Path, tmp_path: Path) -> None:
    for kind in ("user", "system"):
        shutil.copy(data_path("quickstart", f"decodingtrust_{kind}_prompts.csv"), tmp_path / f"{kind}_prompts.csv")
    config = config_of(benchmarks={"decodingtrust": {"prompts": str(tmp_path / "user_prompts.csv")}})
    before = lookups(root, config, "evaluate").prompt_content()
    shipped = lookups(root, config_of(), "evaluate").prompt_content()
    assert before == shipped, "the same two files under another name"
    with (tmp_path / "system_prompts.csv").open("a") as handle:
        handle.write("\n")
    after = lookups(root, config, "evaluate").prompt_content()
    assert after["decodingtrust"] != before["decodingtrust"]
    assert after["decodingtrust"][0] == before["decodingtrust"][0]


def test_variants_of_a_user_count_for_the_table_that_shows_them(root: Path, tmp_path: Path) -> None:
    (tmp_path / "attributes_subj_v1.tsv").write_text("id\tvalence\ttext\n")
    config = config_of(ablations={"variants_dir": str(tmp_path)})
    before = lookups(root, config, "ablations").variants_content()
    (tmp_path / "attributes_subj_v1.tsv").write_text("id\tvalence\ttext\np1\tpositive\tGood.\n")
    assert lookups(root, config, "ablations").variants_content() != before
    assert lookups(root, config_of(), "ablations").variants_content() == []


@pytest.mark.parametrize("page", ["metamorphic_report", "competence_report", "lens_pages"])
def test_pages_depend_on_the_pages_files(root: Path, page: str) -> None:
    rules = {"metamorphic_report": "metamorphic", "competence_report": "competence", "lens_pages": "lenses"}
    text = (root / "workflow" / "rules" / f"{rules[page]}.smk").read_text(encoding="utf-8")
    block = text.partition(f"rule {page}:")[2].partition("\nrule ")[0]
    assert "content(resources.report_path())" in block
