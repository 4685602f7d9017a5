"""What a user names, turned into folders of weights: the forms of a model specification.

======================  ==========================================================================
``owner/name[@rev]``    a repository of the hub: a model or a LoRA adapter
``folder``              a directory of safetensors (one file or shards), or a PEFT adapter directory
``folder``              a training run's folder of ``checkpoint-<step>`` folders: a curve
``file.gguf``           a GGUF file, de-quantised once into the cache
``packaged:...``        the model that a Python package carries
``0.3*A+0.7*B``         a weighted sum of two or more of these; an adapter's change alone is scaled;
                        a weight may be negative, as in ``1.5*B-0.5*A``
======================  ==========================================================================

Nothing here reads weights beyond their headers, but for an adapter's few.
"""

import logging
import math
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from refbias.acquisition import hub
from refbias.artifacts import read_json
from refbias.audit import store
from refbias.audit.bases import check_base, named_base
from refbias.audit.identity import same_weights
from refbias.audit.spec_text import path_of, readable
from refbias.audit.training_runs import saved_step, steps_of
from refbias.config.audit import weighted_terms
from refbias.config.audit_result import AuditWarning, SourceKind
from refbias.config.models import GgufPackageSource
from refbias.errors import UserError
from refbias.models.acquire import HUB_IGNORE, HUB_PATTERNS, assemble_package
from refbias.models.files import check_directory, has_tokenizer, refuse_code
from refbias.models.gguf_file import check_gguf, dequantise

LOG = logging.getLogger(__name__)
PACKAGED = {"gemma3-270m": GgufPackageSource(kind="packaged_gguf")}
_PACKAGED_WORD = "packaged:"
_HUB = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Part:
    """One term of a weighted sum: a folder of weights, or an adapter's change added to one.

    `spec` is what the user wrote, `name` a short form of it, `directory` the weights in transformers'
    layout, `adapter` the adapter's folder, `revision` the hub's commit of `spec`.
    """

    weight: float
    spec: str
    name: str
    kind: SourceKind
    directory: Path
    adapter: Path | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Source:
    """A model: the weighted sum of its parts.

    `step` is its place in a training run, `lent_tokenizer` the folder of the tokenizer that serves a model which
    brings none, `warnings` what a reader must know about where it is from.
    """

    name: str
    spec: str
    kind: SourceKind
    parts: tuple[Part, ...]
    step: int | None = None
    lent_tokenizer: Path | None = None
    warnings: tuple[AuditWarning, ...] = ()

    @property
    def directory(self) -> Path:
        """Folder whose configuration is the model's."""
        return self.parts[0].directory

    @property
    def adapters(self) -> list[Path]:
        """Adapter folders among the parts."""
        return [part.adapter for part in self.parts if part.adapter is not None]

    @property
    def tokenizer(self) -> Path:
        """Folder of the tokenizer: the model's own, an adapter's where it has one; else the one that is lent."""
        own = [folder for folder in self.adapters if (folder / "tokenizer_config.json").is_file()]
        return own[0] if own else self.lent_tokenizer or self.directory

    @property
    def revision(self) -> str | None:
        """The hub's commit, where the model is of the hub."""
        return self.parts[0].revision if len(self.parts) == 1 else None


def resolve_reference(spec: str, dtype: str) -> Source:
    """Return the reference model that a specification names.

    Parameters
    ----------
    spec
        See the table at the head of the module; an adapter's base is the one that it names.
    dtype
        ``float32`` or ``bfloat16``: number type of weights that are de-quantised.

    Raises
    ------
    UserError
        If there is no such model, or it is in no form that is read.
    """
    found = _resolve(spec, dtype, base=None, any_base=True)
    if len(found) > 1:
        raise UserError(
            f"{spec}: holds {len(found)} checkpoints, a reference is one: name {spec.rstrip('/')}/{found[0].name}"
        )
    return found[0]


def resolve_audited(spec: str, reference: Source, dtype: str, any_base: bool = False) -> list[Source]:
    """Return the model, or the curve of checkpoints in the order of their steps, that a specification names.

    Parameters
    ----------
    spec
        See the table at the head of the module.
    reference
        The model whose weights an adapter is added to.
    dtype
        As for `resolve_reference`.
    any_base
        Accept an adapter that names another base, as long as its matrices fit.

    Raises
    ------
    UserError
        If there is no such model, it is in no form that is read, or an adapter is of another base.
    """
    return _resolve(spec, dtype, base=reference, any_base=any_base)


def distinct_names(sources: Sequence[Source], taken: Iterable[str] = ()) -> list[Source]:
    """Return the sources with names that differ, also from those taken."""
    names = [*taken, *(source.name for source in sources)]
    used = set(taken)
    result = []
    for source in sources:
        name = source.name
        if names.count(name) > 1 and len(source.parts) == 1:
            path = (source.parts[0].adapter or source.directory).resolve()
            name = f"{path.parent.name}/{source.name}"
        number = 2
        while name in used:
            name, number = f"{source.name} ({number})", number + 1
        used.add(name)
        result.append(replace(source, name=name))
    return result


def _resolve(spec: str, dtype: str, base: Source | None, any_base: bool) -> list[Source]:
    spec = readable(spec.strip())
    # a file may be called so
    if (terms := weighted_terms(spec)) and not os.path.exists(spec):
        return [_mixture(spec, terms, dtype, base, any_base)]
    path = path_of(spec)
    if os.path.isdir(path) and (steps := steps_of(path)):
        return _curve(spec, path, steps, base, any_base)
    part = _part(spec, dtype, base, any_base)
    return [_with_tokenizer(Source(part.name, spec, part.kind, (part,)), base)]


def _with_tokenizer(source: Source, base: Source | None, run: Path | None = None) -> Source:
    """Return a model with a tokenizer: its own, else another part's, its training run's, or the reference's."""
    if has_tokenizer(source.directory):
        return source
    own = [part.directory for part in source.parts] + ([run] if run is not None else [])
    found = next((folder for folder in own if has_tokenizer(folder)), None)
    if found is not None or base is None:
        return replace(source, lent_tokenizer=found)
    LOG.warning("%s: no tokenizer of its own: the reference's is used", source.spec)
    return replace(source, lent_tokenizer=base.tokenizer, warnings=(*source.warnings, _LENT))


_LENT = AuditWarning(
    code="tokenizer_lent",
    sentence="The model brings no tokenizer of its own: its sentences were split by the reference's, which is right "
    "only if it was trained with that one.",
)


def _curve(spec: str, path: Path, steps: list[tuple[int, Path]], base: Source | None, any_base: bool) -> list[Source]:
    sources = []
    for step, folder in steps:
        part = _directory(str(Path(spec) / folder.name), folder, base, any_base)
        source = Source(folder.name, part.spec, part.kind, (part,), step)
        sources.append(_with_tokenizer(source, base, run=path))
    # the trainer's last save, beside its checkpoints
    if any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
        part = _directory(spec, path, base, any_base)
        last = _with_tokenizer(Source(part.name, spec, part.kind, (part,), saved_step(path)), base)
        twin = next((source for source in reversed(sources) if same_weights(last, source)), None)
        if twin is not None:
            LOG.warning("%s: the model beside the checkpoints repeats %s: left out", spec, twin.name)
            return sources
        sources.append(last)
        if last.step is None:
            LOG.warning("%s: no trainer_state.json says at which step the model beside the checkpoints was saved", spec)
        else:
            sources.sort(key=lambda source: source.step or 0)
    return sources


def _mixture(spec: str, terms: list[tuple[float, str]], dtype: str, base: Source | None, any_base: bool) -> Source:
    if not all(math.isfinite(weight) for weight, _ in terms):
        raise UserError(f"{spec}: a weight is not a finite number: write sums such as '0.3*A+0.7*B'")
    parts = [replace(_part(text, dtype, base, any_base), weight=weight) for weight, text in terms]
    total = sum(weight for weight, _ in terms)
    if any(part.adapter is None for part in parts):
        if abs(total - 1) > _SUM_TOLERANCE:
            raise UserError(f"{spec}: the weights sum to {total:g}: weights of whole checkpoints must sum to 1")
    elif abs(total - 1) > _SUM_TOLERANCE:
        # changes of weights may have any sum: the base makes up for the rest of its own weights
        first = parts[0]
        parts.append(Part(1 - total, first.spec, first.name, "directory", first.directory))
    if len({part.directory for part in parts if part.adapter is not None}) > 1:
        raise UserError(f"{spec}: the adapters are of several bases: use adapters of one model")
    name = " + ".join(f"{part.weight:g} {part.name}" for part in parts[: len(terms)])
    return _with_tokenizer(Source(name, spec, "mixture", tuple(parts)), base)


def _part(spec: str, dtype: str, base: Source | None, any_base: bool) -> Part:
    if spec.startswith(_PACKAGED_WORD):
        return _packaged(spec, dtype)
    path = path_of(spec)
    # a path that the system has no use for is no file
    if os.path.isfile(path):
        return _gguf_file(spec, path, dtype)
    if os.path.isdir(path):
        if steps_of(path):
            raise UserError(f"{spec}: a folder of checkpoints is a curve, no term of a sum: name one of them")
        return _directory(spec, path, base, any_base)
    match = _HUB.fullmatch(spec)
    # `models/mine` beside an existing folder `models` is a slip of the pen, no repository
    if match is None or spec.startswith((".", "/", "~")) or (path.parent != Path() and os.path.isdir(path.parent)):
        raise UserError(f"{spec}: no such file or folder: name one, or a hub id 'owner/name'")
    return _hub(spec, match, base, any_base)


def _directory(spec: str, path: Path, base: Source | None, any_base: bool) -> Part:
    name = path.name or path.resolve().name
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        refuse_code(path)
        folder = _base_of(path, spec, base, any_base)
        return Part(1.0, spec, name, "adapter", folder, adapter=path)
    # an audited model may take the reference's tokenizer
    check_directory(path, tokenizer=base is None)
    return Part(1.0, spec, name, "directory", path)


def _hub(spec: str, match: re.Match[str], base: Source | None, any_base: bool) -> Part:
    repo = hub.Repo(match["id"], match["revision"] or "main")
    folder, commit = hub.snapshot(repo, HUB_PATTERNS, HUB_IGNORE)
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        refuse_code(folder)
        directory = _base_of(folder, spec, base, any_base)
        return Part(1.0, spec, match["id"], "adapter", directory, adapter=folder, revision=commit)
    check_directory(folder, tokenizer=base is None)
    return Part(1.0, spec, match["id"], "hub", folder, revision=commit)


def _base_of(adapter: Path, spec: str, base: Source | None, any_base: bool) -> Path:
    """Return the folder of the base's weights: the reference's, or for a reference the one that it names."""
    if base is not None:
        folders = {part.directory for part in base.parts}
        if len(folders) > 1:
            raise UserError(f"{spec}: an adapter needs one base, and the reference is a sum of {len(folders)} models")
        check_base(adapter, base.directory, _names(base), any_base)
        return base.directory
    config = read_json(adapter / "adapter_config.json")
    named = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(named, str) or not named:
        raise UserError(f"{spec}: an adapter as reference that names no base: name the base as reference")
    if (found := named_base(named, adapter)) is not None:
        check_directory(found)
        return found
    if named in PACKAGED:
        return _packaged(_PACKAGED_WORD + named, "float32").directory
    if (match := _HUB.fullmatch(named)) is not None:
        return _hub(named, match, None, True).directory
    raise UserError(f"{spec}: an adapter as reference, and its base {named!r} is not here: name the base as reference")


def _names(source: Source) -> set[str]:
    """Return what an adapter may call this model: its hub id, its folder, the packaged model's word."""
    part = source.parts[0]
    names = {part.spec.split("@")[0], part.name, part.directory.name, part.directory.resolve().name}
    names.add(part.spec.removeprefix(_PACKAGED_WORD))
    # the hub client's cache: models--owner--name/snapshots/<commit>
    if part.directory.parent.name == "snapshots":
        names.add(part.directory.parents[1].name.removeprefix("models--").replace("--", "/"))
    return {name for name in names if name}


def _packaged(spec: str, dtype: str) -> Part:
    name = spec.removeprefix(_PACKAGED_WORD)
    source = PACKAGED.get(name)
    if source is None:
        raise UserError(f"{spec}: no packaged model of that name: use {_PACKAGED_WORD}{next(iter(PACKAGED))}")
    key = store.key_of({"gguf_sha256": source.sha256, "dtype": dtype, "format": 1})
    if (place := store.find("models", key)) is None:
        with (
            store.writing("models", key, {"name": f"{spec} ({dtype})"}) as folder,
            tempfile.TemporaryDirectory(dir=folder, prefix=".gguf-") as scratch,
        ):
            dequantise(assemble_package(source, Path(scratch)), folder, dtype)
        place = store.folder("models", key)
    return Part(1.0, spec, name, "gguf", place)


def _gguf_file(spec: str, path: Path, dtype: str) -> Part:
    check_gguf(path)
    key = store.key_of({"gguf_sha256": store.file_hash(path), "dtype": dtype, "format": 1})
    if (place := store.find("models", key)) is None:
        with store.writing("models", key, {"name": f"{path.name} ({dtype})"}) as folder:
            dequantise(path, folder, dtype)
        place = store.folder("models", key)
    return Part(1.0, spec, path.stem, "gguf", place)
