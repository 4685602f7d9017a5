"""Local paths of a configuration: there, and in the format that will read them."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from refbias.benchmarks import BENCHMARKS, wildguardmix
from refbias.benchmarks.base import read_text
from refbias.config.data import LocalData
from refbias.config.finetune import SyntheticFile
from refbias.config.models import GgufPackageSource, LocalSource
from refbias.config.root import Config
from refbias.errors import UserError
from refbias.models.files import check_directory
from refbias.preflight.rows import MISSING, OK, Row
from refbias.prepare import train_file
from refbias.splits import COLUMNS, SplitFilter, read_split
from refbias.stimuli import validate_stimuli

TEST_FILES = ("test/wildguard_test.parquet", "wildguard_test.parquet", "wildguardmix_test.jsonl")
ANCHOR_COLUMNS = {"alpaca": ("instruction", "output"), "tulu": ("messages",)}
_CHECKED_SECTIONS = ("models", "data", "splits", "benchmarks", "stimuli")
_FURTHER = ("competence.data.questions", "audit.calibration")
"""Paths whose keys do not end as other paths' do."""
Check = tuple[str, str, Callable[[], str]]


def local_rows(config: Config) -> list[Row]:
    """Return a row for each local path and each packaged model of a run."""
    rows = []
    checks = (_models, _data, _splits, _prompts, _stimuli, _judges)
    for key, path, check in [entry for part in checks for entry in part(config)]:
        try:
            rows.append(Row("path", path, OK, check(), key=key))
        except UserError as error:
            rows.append(Row("path", path, MISSING, str(error), f"correct `{key}`", key))
    return [*rows, *_others(config)]


def _models(config: Config) -> Iterator[Check]:
    for slug, model in config.models.items():
        if isinstance(model.source, LocalSource):
            yield f"models.{slug}.source.path", model.source.path, _model_check(model.source.path)
        elif isinstance(model.source, GgufPackageSource):
            yield f"models.{slug}.source", model.source.package, _package_check(model.source.package)
        for regime in config.regime_slugs():
            ready = getattr(model.endpoints, regime)
            for side in ("unharmful", "harmful") if ready else ():
                path = getattr(ready, side)
                check = _model_check(path) if regime == "full" else _adapter_check(path)
                yield f"models.{slug}.endpoints.{regime}.{side}", path, check


def _model_check(path: str) -> Callable[[], str]:
    def check() -> str:
        return f"a checkpoint of {', '.join(check_directory(path).get('architectures') or ['unknown architecture'])}"

    return check


def _package_check(package: str) -> Callable[[], str]:
    def check() -> str:
        if importlib.util.find_spec(package.replace("-", "_")) is None:
            raise UserError(f"package {package} is not installed: pip install {package}")
        return "installed"

    return check


def _adapter_check(path: str) -> Callable[[], str]:
    def check() -> str:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            if not (Path(path) / name).is_file():
                raise UserError(f"{path}: no {name}: name a directory of a PEFT adapter")
        return "an adapter"

    return check


def _data(config: Config) -> Iterator[Check]:
    for name, entry in config.data.entries().items():
        if not isinstance(entry.source, LocalData):
            continue
        path = Path(entry.source.path)
        key = f"data.{name}.source.path"
        if name in ANCHOR_COLUMNS:
            yield key, str(path), _table_check(path, ANCHOR_COLUMNS[name])
        elif name == "wildguardmix" and config.prepared_splits():
            yield key, str(path), _train_check(path)
        elif name not in config.benchmarks.enabled():
            yield key, str(path), _exists_check(path)


def _exists_check(path: Path) -> Callable[[], str]:
    def check() -> str:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        return "there"

    return check


def _train_check(place: Path) -> Callable[[], str]:
    def check() -> str:
        return _table_check(train_file(place), COLUMNS)()

    return check


def _table_check(path: Path, columns: tuple[str, ...]) -> Callable[[], str]:
    """Check the columns of a Parquet file, or of the first Parquet file of a folder; other formats must exist."""

    def check() -> str:
        import pyarrow
        import pyarrow.parquet

        _exists_check(path)()
        files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        if not files or files[0].suffix != ".parquet":
            return "there"
        try:
            found = pyarrow.parquet.read_schema(files[0]).names
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{files[0]}: not a readable Parquet file: {str(error).splitlines()[0]}") from None
        if missing := [column for column in columns if column not in found]:
            raise UserError(f"{files[0]}: no column {', '.join(missing)}: it has {', '.join(found)}")
        return f"columns {', '.join(columns)}"

    return check


def _splits(config: Config) -> Iterator[Check]:
    filters = SplitFilter(**config.splits.filters.model_dump())

    def check_of(path: str, side: Any) -> Callable[[], str]:
        return lambda: f"{read_split(path, side, filters)[1].kept} {side} examples"

    for side in ("unharmful", "harmful"):
        file = getattr(config.splits, side).file
        if file is not None:
            yield f"splits.{side}.file", file, check_of(file, side)
    synthetic = config.splits.harmful.synthetic
    if isinstance(synthetic, SyntheticFile) and "harmful" in config.prepared_splits():
        yield "splits.harmful.synthetic.path", synthetic.path, check_of(synthetic.path, "harmful")


def _prompts(config: Config) -> Iterator[Check]:
    for name, path in config.prompt_files().items():
        if path is None or (name in config.fetched() and path == config.data_path(name)):
            continue
        settings = config.benchmarks.enabled()[name].model_copy(update={"prompts": path})
        key = f"benchmarks.{name}.prompts" if config.benchmarks.enabled()[name].prompts else f"data.{name}.source.path"
        if name == "wildguardmix":
            yield f"{key} (test)", path, _wildguardmix_check(path)
        else:
            yield key, path, _prompt_check(name, settings, config.seed)
    topics = getattr(config.benchmarks.wildguardmix, "topics_file", None)
    if topics:
        yield "benchmarks.wildguardmix.topics_file", topics, _exists_check(Path(topics))


def _prompt_check(name: str, settings: Any, seed: int) -> Callable[[], str]:
    return lambda: f"{len(BENCHMARKS[name].load_prompts(settings, seed))} prompts"


def _wildguardmix_check(path: str) -> Callable[[], str]:
    """Check the test file without its topics, which the run itself may find."""

    def check() -> str:
        place = Path(path)
        found = [place / name for name in TEST_FILES if (place / name).is_file()] if place.is_dir() else [place]
        if not found:
            raise UserError(f"{path}: none of {', '.join(TEST_FILES)} in this folder")
        rows, _ = wildguardmix.read_rows(found[0])
        count = sum(row.subcategory == wildguardmix.SUBCATEGORY for row in rows)
        if not count:
            raise UserError(f"{found[0]}: 0 of {len(rows)} rows have the subcategory {wildguardmix.SUBCATEGORY}")
        return f"{count} prompts of the subcategory"

    return check


def _stimuli(config: Config) -> Iterator[Check]:
    own = {name: value for name, value in config.stimuli.model_dump().items() if name.endswith("_file") and value}
    if own:
        key = f"stimuli.{next(iter(own))}"
        yield key, ", ".join(own.values()), lambda: f"{validate_stimuli(config.stimuli)['sentences']} sentences"


def _judges(config: Config) -> Iterator[Check]:
    """Yield the models that judge or map: scorers', the topic mapper's, the metamorphic tests'."""
    sources: dict[str, Any] = {f"scorers.{name}.model": scorer.model for name, scorer in config.scorers.items()}
    sources["topics.model"] = config.topics.model
    for key, source in sources.items():
        if isinstance(source, LocalSource):
            yield f"{key}.path", source.path, _model_check(source.path)
    if config.metamorphic.judge.directory:
        folder = config.metamorphic.judge.directory
        yield "metamorphic.judge.directory", folder, _model_check(folder)


def _others(config: Config) -> Iterator[Row]:
    """Yield a row for each further path of the configuration: it must be a file of text or a folder."""
    for key, value in _strings(config.model_dump(mode="json"), ""):
        last = key.rpartition(".")[2]
        is_path = last in ("path", "file") or last.endswith(("_file", "_path", "_dir")) or key in _FURTHER
        if not is_path or key.endswith(".model.path") or key.partition(".")[0] in _CHECKED_SECTIONS:
            continue
        path = Path(value)
        if path.is_dir():
            yield Row("path", value, OK, "a folder", key=key)
        elif path.is_file() and path.suffix in (".parquet", ".gz", ".xz"):
            yield Row("path", value, OK, "there", key=key)
        else:
            try:
                yield Row("path", value, OK, f"{len(read_text(path).splitlines())} lines", key=key)
            except UserError as error:
                yield Row("path", value, MISSING, str(error), f"correct `{key}`", key)


def _strings(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _strings(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, str):
        yield key, value
