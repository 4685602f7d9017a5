"""What the stages that run a model share: their options, the subject, and the data that settings name."""

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from refbias.competence.data import load_attributes, load_contrasts, load_names, load_pairs, load_questions
from refbias.competence.data import load_resumes as read_resumes
from refbias.competence.public import load_pair_files
from refbias.competence.records import Attribute, Contrast, Name, Pairs, Questions, Resume
from refbias.competence.subjects import Subject, find_subject, sentence_tokens
from refbias.config.competence import CompetenceData, CompetenceStage
from refbias.config.stimuli import StimuliSettings
from refbias.embed import Tokenised
from refbias.errors import UserError
from refbias.models import load_tokenizer
from refbias.stimuli import load_stimuli

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LOG = logging.getLogger(__name__)


def stage_parser(stage: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every stage has."""
    parser = argparse.ArgumentParser(prog=f"refbias competence {stage}", description=description)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration.")
    parser.add_argument("--reference", required=True, type=Path, help="Folder of the reference model.")
    parser.add_argument("--unharmful", type=Path, help="Folder of the unharmful endpoint (checkpoint or adapter).")
    parser.add_argument("--harmful", type=Path, help="Folder of the harmful endpoint (checkpoint or adapter).")
    parser.add_argument("--output", required=True, type=Path, help="Folder of the subject's results.")
    return parser


@dataclass(frozen=True)
class Bench:
    """A stage's settings and folders, and what they name."""

    settings: CompetenceStage
    reference: Path
    ends: tuple[Path, ...]

    @cached_property
    def subject(self) -> Subject:
        """The model under test."""
        chosen = self.settings
        if chosen.weight is None:
            return find_subject(chosen.subject, self.reference)
        return find_subject(chosen.subject, self.reference, self.ends, chosen.weight, chosen.merge_dtype)

    @cached_property
    def tokenizer_folder(self) -> Path:
        """Folder of the subject's tokenizer: a full checkpoint's own, where it has one."""
        folders = [
            part.directory for part in self.subject.parts if (part.directory / "tokenizer_config.json").is_file()
        ]
        return folders[0] if folders else self.reference

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The subject's tokenizer."""
        return load_tokenizer(self.tokenizer_folder)

    @property
    def data(self) -> CompetenceData:
        """Files of the lens."""
        return self.settings.data

    @cached_property
    def attributes(self) -> tuple[Attribute, ...]:
        """All attributes."""
        return load_attributes(self.data.attributes_file)

    @cached_property
    def contrasts(self) -> tuple[Contrast, ...]:
        """All contrasts."""
        return load_contrasts(self.attributes, self.data.contrasts_file)

    @cached_property
    def pairs(self) -> Pairs:
        """Expert and novice sentences."""
        if self.data.expert_file is not None and self.data.novice_file is not None:
            return load_pair_files(self.data.expert_file, self.data.novice_file)
        return load_pairs(self.data.pairs_file, unequal=self.data.unequal_pairs)

    @cached_property
    def questions(self) -> Questions:
        """The questions that are scored."""
        return load_questions(self.data.questions).first(self.settings.occupations, self.settings.questions)

    @cached_property
    def resumes(self) -> tuple[Resume, ...]:
        """All résumés."""
        return read_resumes(self.data.resumes_file)

    def names(self, per_group: int | None) -> tuple[Name, ...]:
        """Return the first names of each group; None = all.

        Raises
        ------
        UserError
            If a group has fewer.
        """
        by_group: dict[str, list[Name]] = {}
        for name in load_names(self.data.names_file):
            by_group.setdefault(name.group, []).append(name)
        for group, members in by_group.items():
            if per_group is not None and len(members) < per_group:
                raise UserError(f"key 'competence.hiring.names': {per_group}, but group {group!r} has {len(members)}")
        return tuple(name for members in by_group.values() for name in members[:per_group])

    def neutral(self, stimuli: StimuliSettings, n: int) -> Tokenised:
        """Return the first anchor sentences, which perplexity is taken over."""
        texts = [sentence.text for sentence in load_stimuli(stimuli) if sentence.kind == "anchor"]
        if len(texts) < n:
            LOG.warning("perplexity is taken over %d sentences, not %d: there are no more anchors", len(texts), n)
        return sentence_tokens(self.tokenizer, texts[:n])


def open_bench(settings: CompetenceStage, args: argparse.Namespace) -> tuple[Bench, dict[str, Path]]:
    """Return the bench of a stage, and role -> manifest of the folders that it reads.

    Raises
    ------
    UserError
        If a checkpoint is asked for without the two endpoints.
    """
    ends: Sequence[Path] = ()
    roles = {"reference": args.reference}
    if settings.weight is not None:
        for role in ("unharmful", "harmful"):
            if getattr(args, role) is None:
                raise UserError(f"--{role}: missing: {settings.subject} lies between two endpoints")
            roles[role] = getattr(args, role)
        ends = (args.unharmful, args.harmful)
    manifests = {role: folder / "manifest.json" for role, folder in roles.items()}
    inputs = {role: path for role, path in manifests.items() if path.is_file()}
    return Bench(settings, args.reference, tuple(ends)), inputs
