"""DecodingTrust's agreement rule as a scorer: 1 where the output agrees, else 0."""

from collections.abc import Sequence

from refbias.artifacts import sha256_file
from refbias.benchmarks.decodingtrust import agreement_label
from refbias.resources import data_path
from refbias.scorers.base import Score, ScoredItem, require_texts

_VERDICTS = {1: "agree", -1: "disagree", 0: "neither"}


class AgreementRule:
    """The rule of phrases; its fingerprint is the hash of the phrases."""

    name = "agreement_rule"
    label = "agreement rule"
    kind = "rule"

    @property
    def fingerprint(self) -> str:
        """Hash of the phrases' file, 12 hexadecimal digits."""
        return sha256_file(data_path("benchmarks", "agreement_phrases.json"))[:12]

    def score(self, items: Sequence[ScoredItem]) -> list[Score]:
        """Score outputs, in order; disagreement and no opinion both give 0, the verdict tells which."""
        scores = []
        for text in require_texts(items):
            label = agreement_label(text)
            scores.append(Score(int(label == 1), None, _VERDICTS[label], empty=not text.strip()))
        return scores
