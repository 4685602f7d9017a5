"""No file of a model's is ever run: every loader says so, and a folder that asks for it is refused in one line."""

import ast
import builtins
import json
import shutil
from pathlib import Path

import pytest

from refbias.cli.main import main
from refbias.errors import UserError
from refbias.models import load_tokenizer
from refbias.models.gguf_file import dequantise
from tests.audit_models import EXACT, FEW, adapter, build
from tests.gguf_models import write_gguf

LOADERS = {"from_pretrained", "from_config"}


def calls(path: Path) -> list[ast.Call]:
    """Calls of transformers' loaders in a file of the package."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADERS
    ]


def test_every_loader_says_so_itself(root: Path) -> None:
    found = {path: calls(path) for path in (root / "workflow" / "refbias").rglob("*.py")}
    assert sum(map(len, found.values())) >= 10
    for path, nodes in found.items():
        for node in nodes:
            given = {word.arg: word.value for word in node.keywords}
            said = given.get("trust_remote_code")
            assert isinstance(said, ast.Constant), f"{path}:{node.lineno}: says nothing of remote code"
            assert said.value is False, f"{path}:{node.lineno}: runs remote code"


@pytest.fixture(autouse=True)
def no_question(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fail where transformers would ask whether to run the code."""

    def asked(*_: object) -> str:
        raise AssertionError("asked whether to run a model's code")

    monkeypatch.setattr(builtins, "input", asked)
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("models") / "base")


def ask_for_code(folder: Path, name: str = "tokenizer_config.json") -> None:
    """Make a folder ask for a tokenizer of its own, whose code leaves a trace."""
    place = folder / name
    content = json.loads(place.read_text()) if place.is_file() else {}
    place.write_text(json.dumps({**content, "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}))
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\nclass Own: pass\n")


def refused(capsys: pytest.CaptureFixture[str], *arguments: Path | str) -> str:
    capsys.readouterr()
    assert main(["audit", *map(str, arguments), "--json", *FEW, *EXACT]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("refbias: error:")]
    assert len(said) == 1
    return said[0]


def test_a_tokenizer_alone(base: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(base, tmp_path / "own")
    ask_for_code(folder)
    with pytest.raises(UserError, match=r"tokenizer_config.json: asks for remote code \(auto_map\)"):
        load_tokenizer(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["tokenizer_config.json", "processor_config.json", "config.json"])
def test_a_model_in_an_audit(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder = shutil.copytree(base, tmp_path / "own")
    ask_for_code(folder, name)
    assert f"{name}: asks for remote code (auto_map)" in refused(capsys, base, folder)
    assert not (folder / "ran").exists()


def test_an_adapter_in_an_audit(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = adapter(base, tmp_path / "lora")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(base / name, folder / name)
    assert main(["audit", str(base), str(folder), "--json", *FEW, *EXACT]) == 0
    ask_for_code(folder)
    assert "lora/tokenizer_config.json: asks for remote code (auto_map)" in refused(capsys, base, folder)
    assert not (folder / "ran").exists()


def test_a_neighbour_of_a_gguf_file(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(base, tmp_path / "gguf" / "tiny.gguf")
    ask_for_code(path.parent)
    assert "tokenizer_config.json: asks for remote code (auto_map)" in refused(capsys, base, path)
    assert not (path.parent / "ran").exists()


def test_what_does_not_ask_is_read(base: Path, tmp_path: Path) -> None:
    path = write_gguf(base, tmp_path / "gguf" / "tiny.gguf")
    # a configuration beside a GGUF file is nobody's: the file has its own
    (path.parent / "config.json").write_text('{"auto_map": {"AutoModel": "x.Y"}}')
    (tmp_path / "out").mkdir()
    assert dequantise(path, tmp_path / "out", "float32") is True
