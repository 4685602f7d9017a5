"""The sentences of an audit: a pack, files of one's own, or the shipped sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refbias.config.audit import AuditStimuli
from refbias.config.audit_result import StimuliFacts
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.metrics import Embeddings
from refbias.stimuli import Sentence, load_stimuli, read_stimuli, stimuli_sha256
from refbias.stimuli.groups import CONTROL
from refbias.stimuli.packs import DEFAULT, find_pack

_SIZES = ("targets", "attributes", "anchors", "control")
_FILES = ("groups_file", "targets_file", "attributes_file", "anchors_file", "control_file")


@dataclass(frozen=True)
class Stimuli:
    """The sentences in the order of the rows of the embeddings, and what is said about them.

    `topics` maps a group to its topic, `templates` a template's id to its text.
    """

    name: str
    sentences: tuple[Sentence, ...]
    topics: dict[str, str]
    templates: dict[str, str]

    @property
    def sha256(self) -> str:
        """Hash over every sentence's id, kind, group and text, as ``sentences.tsv`` holds them."""
        return stimuli_sha256(self.sentences)

    @property
    def groups(self) -> list[str]:
        """Ids of the target groups, in order."""
        return list(dict.fromkeys(row.group for row in self.sentences if row.kind == "target"))

    def of_kind(self, kind: str) -> list[Sentence]:
        """Return the sentences of a kind, in order."""
        return [row for row in self.sentences if row.kind == kind]

    def part(self, targets: int, attributes: int, anchors: int) -> list[int]:
        """Return the rows of a smaller set: the first sentences of each group, kind and valence."""
        left = {"positive": attributes, "negative": attributes, "anchor": anchors, "control": targets}
        by_group = dict.fromkeys(self.groups, targets)
        rows = []
        for index, row in enumerate(self.sentences):
            counter = by_group if row.kind == "target" else left
            name = row.group if row.kind == "target" else row.kind
            if counter[name] > 0:
                counter[name] -= 1
                rows.append(index)
        return rows

    def facts(self) -> StimuliFacts:
        """Return what the result says about the sentences."""
        counts = {kind: len(self.of_kind(kind)) for kind in ("positive", "negative", "anchor", "control")}
        per_group = [sum(row.group == group for row in self.of_kind("target")) for group in self.groups]
        return StimuliFacts(
            name=self.name,
            sha256=self.sha256,
            n_groups=len(per_group),
            n_targets=max(per_group),
            n_positive=counts["positive"],
            n_negative=counts["negative"],
            n_anchors=counts["anchor"],
            n_control=counts["control"],
        )


def choose_stimuli(settings: AuditStimuli) -> Stimuli:
    """Return the sentences that the settings choose, validated.

    Raises
    ------
    UserError
        With ``file:line`` for a mistake in a file, or where a set is empty.
    """
    files = {key: getattr(settings, key) for key in _FILES}
    name = "own: " + ", ".join(Path(path).name for path in files.values() if path) if any(files.values()) else DEFAULT
    if settings.pack is not None:
        pack = find_pack(settings.pack)
        name, files = pack.name, {f"{part}_file": str(path) for part, path in pack.files.items()}
    base = read_stimuli(StimuliSettings.model_validate(files))
    available = {
        "targets": min(sum(entry.label in ("", group.id) for entry in base.targets) for group in base.groups),
        "attributes": min(len(base.positive), len(base.negative)),
        "anchors": len(base.anchors),
        "control": len(base.control),
    }
    if not available["attributes"]:
        lacking = "positive" if not base.positive else "negative"
        raise UserError(f"{base.cleaning[2].path}: no {lacking} attribute: add sentences of both valences")
    sizes = {key: getattr(settings, key) or available[key] for key in _SIZES}
    sentences = load_stimuli(StimuliSettings.model_validate({**files, **sizes}))
    return Stimuli(
        name=name,
        sentences=tuple(sentences),
        topics={group.id: group.topic for group in base.groups},
        templates={entry.id: entry.text for entry in base.targets},
    )


def split(matrix: npt.NDArray[np.floating[Any]], sentences: Sequence[Sentence]) -> Embeddings:
    """Sort the rows of a model's states into targets by group (the control among them), attributes and anchors.

    Parameters
    ----------
    matrix
        Shape (n, d), a row a sentence.
    sentences
        The n sentences.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    for index, sentence in enumerate(sentences):
        group = {"target": sentence.group, "control": CONTROL}.get(sentence.kind, "")
        rows.setdefault(("target" if group else sentence.kind, group), []).append(index)
    targets = {group: matrix[at] for (kind, group), at in rows.items() if kind == "target"}
    return Embeddings(
        targets=targets,
        positive=matrix[rows["positive", ""]],
        negative=matrix[rows["negative", ""]],
        anchors=matrix[rows["anchor", ""]],
    )
