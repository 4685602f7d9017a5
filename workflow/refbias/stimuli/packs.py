"""Packs: folders of sentence files that belong together, shipped or a user's own.

A pack holds ``groups.tsv``, ``targets.tsv``, ``attributes.tsv``, ``anchors.tsv`` and ``control.tsv``, and in
``pack.json`` what it is about. Its groups need not be people, nor its language English. A pack may take single files
from the default pack; ``valenced_words.txt`` holds, for other languages, the words that must not stand in targets,
control or anchors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from refbias.artifacts import read_json
from refbias.config.base import parse
from refbias.config.packs import Language, PackFacts, Part
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli.german import german_findings
from refbias.stimuli.quality import Finding, check_quality, read_words
from refbias.stimuli.sentences import Sentence, StimulusSet, load_stimuli, read_stimuli
from refbias.stimuli.table import nearest, shown

PARTS: tuple[Part, ...] = get_args(Part)
DEFAULT = "default"
FACTS = "pack.json"
WORDS = "valenced_words.txt"
# rules of a language beyond those that hold for all; English needs none of its own
GRAMMAR: dict[Language, Callable[[StimulusSet], list[Finding]]] = {"de": german_findings}


@dataclass(frozen=True)
class Pack:
    """A pack on disk: where it lies, what it says of itself, and which file each part is."""

    folder: Path
    facts: PackFacts
    files: Mapping[Part, Path]

    @property
    def name(self) -> str:
        """Bare name of its folder."""
        return self.folder.name


def shipped_packs() -> list[str]:
    """Return the names of the packs that ship, the default one first."""
    names = sorted(path.parent.name for path in data_path("packs").glob(f"*/{FACTS}"))
    return [DEFAULT, *(name for name in names if name != DEFAULT)]


def _folder(pack: Path | str) -> Path:
    if Path(pack).is_dir():
        return Path(pack)
    if str(pack) in shipped_packs():
        return data_path("packs", str(pack))
    hint = nearest(str(pack), shipped_packs())
    raise UserError(
        f"pack {shown(str(pack))}: no such folder, nor one of those that ship ({', '.join(shipped_packs())}){hint}"
    )


def find_pack(pack: Path | str, language: Language | None = None) -> Pack:
    """Find a pack and its files; no sentence is read yet.

    Parameters
    ----------
    pack
        A folder, or the name of a pack that ships.
    language
        Of a folder without ``pack.json``; None = English. With one, that file says so.

    Returns
    -------
    Pack
        With every file that it has or takes from the default pack.

    Raises
    ------
    UserError
        If there is no such pack, its metadata is broken or at odds with `language`, or a file is missing.
    """
    folder = _folder(pack)
    stated = folder / FACTS
    if stated.is_file():
        facts = parse(PackFacts, read_json(stated), str(stated))
        if language is not None and language != facts.language:
            raise UserError(f"{stated}: key 'language' is {facts.language!r}, not {language!r}: correct one of them")
    else:
        facts = PackFacts(language=language or "en")
    files: dict[Part, Path] = {}
    for part in PARTS:
        own = folder / f"{part}.tsv"
        if not own.is_file() and part not in facts.inherits:
            raise UserError(f"{folder}: no {part}.tsv: write it, or name {part!r} under 'inherits' in {FACTS}")
        if own.is_file() and part in facts.inherits:
            raise UserError(f"{own}: {stated} takes this part from the default pack: remove one of them")
        files[part] = own if own.is_file() else data_path("stimuli", f"{part}.tsv")
    return Pack(folder, facts, files)


def read_pack(pack: Pack) -> StimulusSet:
    """Read and validate all files of a pack in full; errors as `read_stimuli`."""
    return read_stimuli(_file_settings(pack))


def _file_settings(pack: Pack) -> StimuliSettings:
    return StimuliSettings.model_validate({f"{part}_file": str(path) for part, path in pack.files.items()})


def pack_settings(pack: Pack | Path | str, **sizes: int | None) -> StimuliSettings:
    """Return the settings by which the stages read a pack.

    Parameters
    ----------
    pack
        A pack, a folder or the name of a pack that ships.
    **sizes
        targets, attributes, anchors, control: the first n of each; None or left out = all that the pack holds.

    Returns
    -------
    StimuliSettings
        Files and sizes.

    Raises
    ------
    UserError
        As `find_pack` and `read_stimuli`.
    """
    found = pack if isinstance(pack, Pack) else find_pack(pack)
    stimuli = read_pack(found)
    whole = {
        "targets": min(sum(t.label in ("", group.id) for t in stimuli.targets) for group in stimuli.groups),
        "attributes": min(len(stimuli.positive), len(stimuli.negative)),
        "anchors": len(stimuli.anchors),
        "control": len(stimuli.control),
    }
    chosen = {name: count for name, count in sizes.items() if count is not None}
    return StimuliSettings.model_validate({**_file_settings(found).model_dump(), **whole, **chosen})


def load_pack(pack: Pack | Path | str, **sizes: int | None) -> list[Sentence]:
    """Return the sentences of a pack as `load_stimuli` does; parameters and errors as in `pack_settings`."""
    return load_stimuli(pack_settings(pack, **sizes))


def pack_words(pack: Pack) -> frozenset[str] | None:
    """Return the words that must not stand in a pack's neutral sentences; None where no list of its language is there.

    The pack's own list, or for English the shipped one.
    """
    own = pack.folder / WORDS
    if own.is_file():
        return read_words(own)
    return read_words(data_path("stimuli", WORDS)) if pack.facts.language == "en" else None


def check_pack(pack: Pack) -> list[Finding]:
    """Return every departure of a pack from the standard of the shipped ones.

    What `check_quality` finds, with the valenced words of the pack's language, and the grammar of that language where
    there are rules for it (`GRAMMAR`).
    """
    stimuli = read_pack(pack)
    findings = check_quality(stimuli, pack_words(pack) or frozenset())
    if pack.facts.language in GRAMMAR:
        findings += GRAMMAR[pack.facts.language](stimuli)
    return findings
