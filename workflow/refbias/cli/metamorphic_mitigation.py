"""Make the fine-tuning set of the mitigation from the answers of a metamorphic test."""

import argparse
from pathlib import Path
from typing import get_args

from refbias.artifacts import Stage
from refbias.metamorphic.answers import read_answers
from refbias.metamorphic.biasasker import read_material
from refbias.metamorphic.data import load_neutral
from refbias.metamorphic.forced_choice import Options
from refbias.metamorphic.mitigation import training_set, write_training_set
from refbias.metamorphic.questions import read_questions


def main(argv: list[str]) -> int:
    """Write the set, what is held out, and the manifest last."""
    parser = argparse.ArgumentParser(prog="refbias metamorphic mitigation-set", description=__doc__)
    parser.add_argument("--groups", type=Path, help="TSV of groups, or CSV of a BiasAsker copy; shipped by default")
    parser.add_argument("--properties", type=Path, help="TSV of properties, or CSV of a BiasAsker copy")
    parser.add_argument("--neutral", type=Path, help="TSV of neutral questions; shipped by default")
    parser.add_argument("--questions", type=Path, required=True, help="questions.jsonl")
    parser.add_argument("--answers", type=Path, required=True, help="answers.jsonl of the model before mitigation")
    parser.add_argument("--hold-out", default="MR4", help="relation or chain that is kept out of the set, or none")
    parser.add_argument(
        "--choice", choices=get_args(Options), help="form of the options, where the re-test weighs options"
    )
    parser.add_argument(
        "--held-out-share", type=float, default=0.4, help="share of the pair-property keys of each category kept out"
    )
    parser.add_argument("--limit", type=int, help="biased questions at most, for a short training; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for train.jsonl, held_out.json and the manifest"
    )
    options = parser.parse_args(argv)
    hold_out = "" if options.hold_out == "none" else options.hold_out
    settings = {
        "hold_out": hold_out,
        "choice": options.choice,
        "limit": options.limit,
        "held_out_share": options.held_out_share,
        "seed": options.seed,
    }
    inputs = {"questions": options.questions, "answers": options.answers}
    given = {name: getattr(options, name) for name in ("groups", "properties", "neutral")}
    inputs |= {name: path for name, path in given.items() if path}
    found = training_set(
        read_questions(options.questions),
        read_answers(options.answers),
        load_neutral(options.neutral),
        read_material(options.groups, options.properties),
        hold_out=hold_out,
        choice=options.choice,
        limit=options.limit,
        share=options.held_out_share,
        seed=options.seed,
    )
    counts = {
        "n_biased": found.n_biased,
        "n_neutral": len(found.rows) - found.n_biased,
        "n_neutral_questions": found.n_neutral_questions,
        "most_uses_of_a_neutral_question": found.most_uses,
        "n_keys_held_out": len(found.held_out.keys),
    }
    with Stage("metamorphic_mitigation_set", settings, options.output, inputs) as stage:
        write_training_set(options.output, found)
        stage.record(**counts)
    print(
        f"{found.n_biased} questions with an unbiased answer, {counts['n_neutral']} neutral ones "
        f"({found.n_neutral_questions} questions, each up to {found.most_uses} times in other words); held out: "
        f"{len(found.held_out.keys)} pair-property keys, relation {found.held_out.relation or 'none'}"
    )
    return 0
