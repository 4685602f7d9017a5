"""Result files of a made-up subject with planted effects, in the layout of the competence stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from refbias.competence.data import load_attributes

ATTRIBUTES = load_attributes()
RELEVANT = {"college": 0.8, "no_college": -0.8, "adult": 0.8, "child": -0.8}


@dataclass(frozen=True)
class Plant:
    """What is planted: attribute -> effect on E and on L; `occupation` of naming the occupation; `noise` of both."""

    E: Mapping[str, float] = field(default_factory=lambda: dict(RELEVANT))
    L: Mapping[str, float] = field(default_factory=lambda: dict(RELEVANT))
    occupation: tuple[float, float] = (1.0, 0.5)
    noise: tuple[float, float] = (0.1, 0.15)
    hiring: Mapping[str, float] = field(default_factory=dict)
    n_occupations: int = 8
    n_questions: int = 8
    n_names: int = 2
    samples: int = 2
    seed: int = 0
    missing: float = 0.0


def write_subject(folder: Path, plant: Plant, *, hiring: bool = True, steering: bool = True) -> Path:
    """Write every csv file and direction.json of a subject."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(plant.seed)
    units = [
        (f"job_{place}", f"job_{place}_{question}", generator.normal(), generator.normal())
        for place in range(plant.n_occupations)
        for question in range(plant.n_questions)
    ]
    scores, answers, random = [], [], []
    directions = np.arange(200)
    for attribute in ATTRIBUTES:
        for named in (True, False):
            shift = [
                side.get(attribute.id, 0.0) + named * plant.occupation[at] for at, side in enumerate((plant.E, plant.L))
            ]
            for occupation, question, ease, length in units:
                value = 5 + ease + shift[0] + plant.noise[0] * generator.normal()
                key = {
                    "attribute_id": attribute.id,
                    "occupation": occupation,
                    "question_id": question,
                    "with_occupation": str(named).lower(),
                }
                kind = {"family": attribute.family, "role": attribute.role}
                scores.append({**key, **kind, "E": value, "E_normalised": value / 4, "E_relative": value / 90})
                for sample in range(plant.samples):
                    level = 7 + length + shift[1] + plant.noise[1] * generator.normal() * np.sqrt(plant.samples)
                    gone = generator.random() < plant.missing
                    grades = dict.fromkeys(("fkgl", "dcrs", "reading_level"), None if gone else level)
                    answers.append({**key, "sample": sample, **grades, "words": 30, "sentences": 2, "finished": "true"})
            for kind_of in ("gaussian", "sign_flip"):
                for direction in directions:
                    mean = 2 + 0.03 * generator.normal()
                    random.append(
                        {
                            "attribute_id": attribute.id,
                            "with_occupation": str(named).lower(),
                            "direction": direction,
                            "kind": kind_of,
                            "E": mean,
                        }
                    )
    pd.DataFrame(scores).to_csv(folder / "scores.csv", index=False)
    pd.DataFrame(answers).to_csv(folder / "behaviour.csv", index=False)
    pd.DataFrame(random).to_csv(folder / "random_directions.csv", index=False)
    if hiring:
        write_hiring(folder, plant, generator)
    if steering:
        write_steering(folder)
    return folder


def write_hiring(folder: Path, plant: Plant, generator: np.random.Generator) -> None:
    """Write hiring.csv: résumés of three qualities, `n_names` names of each group, three arms."""
    quality = {"strong": 1.0, "fair": 0.0, "weak": -1.0}
    arms = {"none": 0.0, "plus": 0.6, "minus": -0.6}
    rows = []
    for job in ("office", "driver", "kitchen"):
        for grade, lift in quality.items():
            for group in ("black_men", "black_women", "white_men", "white_women"):
                for place in range(plant.n_names):
                    for arm, push in arms.items():
                        logit = lift + push + plant.hiring.get(group, 0.0) + 0.05 * generator.normal()
                        rows.append(
                            {
                                "resume_id": f"{job}_{grade}",
                                "quality": grade,
                                "role": job,
                                "name": f"{group} {place}",
                                "group": group,
                                "arm": arm,
                                "alpha": {"none": 0, "plus": 4, "minus": -4}[arm],
                                "yes_logit_minus_no": logit,
                                "p_yes": 1 / (1 + np.exp(-logit)),
                                "parsed": "" if place and grade == "fair" else "yes" if logit > 0 else "no",
                                "E": 3 + lift + 0.05 * generator.normal(),
                            }
                        )
    pd.DataFrame(rows).to_csv(folder / "hiring.csv", index=False)


def write_steering(folder: Path) -> None:
    """Write steering.csv and direction.json."""
    rows = [
        {
            "alpha": alpha,
            "direction": direction,
            "fkgl": 7 + slope * alpha / 4,
            "dcrs": 6 + slope * alpha / 8,
            "reading_level": 6.5 + slope * alpha / 5 if abs(alpha) < 8 else None,
            "yes_logit": slope * alpha / 3,
            "perplexity": 20 * np.exp(alpha**2 / 40),
            "n": 16,
        }
        for direction, slope in (("expertise", 1.0), ("random", 0.1), ("placebo", -0.05))
        for alpha in (-8, -4, -2, 0, 2, 4, 8)
    ]
    pd.DataFrame(rows).to_csv(folder / "steering.csv", index=False)
