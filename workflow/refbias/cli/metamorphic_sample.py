"""Stage `metamorphic sample`: draw the source questions and reword them."""

import argparse
from collections import Counter
from pathlib import Path

from refbias.artifacts import Stage
from refbias.config.base import parse_json
from refbias.config.metamorphic import SampleStage
from refbias.metamorphic.biasasker import read_material
from refbias.metamorphic.questions import write_questions
from refbias.metamorphic.relations import flips, parse_chains, with_mutants
from refbias.metamorphic.sampling import cochran, population, sample_sources


def main(argv: list[str]) -> int:
    """Write ``questions.jsonl`` and the manifest."""
    parser = argparse.ArgumentParser(prog="refbias metamorphic sample", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration.")
    parser.add_argument("--output", required=True, type=Path, help="Folder for questions.jsonl and the manifest.")
    args = parser.parse_args(argv)
    settings = parse_json(SampleStage, args.settings, "--settings")
    files = {"groups": settings.groups_file, "properties": settings.properties_file}
    given = {role: Path(path) for role, path in files.items() if path}
    with Stage("metamorphic_sample", settings.model_dump(mode="json"), args.output, given) as stage:
        material = read_material(given.get("groups"), given.get("properties"))
        chains = parse_chains(settings.relations)
        sources = sample_sources(
            material, settings.per_category, settings.seed, flip=flips(chains), poles=list(settings.poles)
        )
        rows = with_mutants(sources, chains, settings.seed)
        write_questions(args.output / "questions.jsonl", rows)
        could_be = population(material, flips(chains), list(settings.poles))
        stage.record(
            n_sources=len(sources),
            n_questions=len(rows),
            categories=dict(Counter(row.category for row in rows)),
            population=could_be,
            # for the reader of a report: the size that estimates a share to 5 points, with the finite correction
            cochran=cochran(sum(could_be.values())),
        )
    return 0
