"""The slice of a run's configuration that each stage sees, as JSON: a change elsewhere reruns nothing.

No stage of the workflow imports these modules, only the rules do: a stage reads its slice with its own settings' model.
"""

from refbias.config.slices.ablations import (
    ablate_slice,
    ablation_sentences_slice,
    analyse_ablations_slice,
    represent_ablations_slice,
)
from refbias.config.slices.acquire import (
    acquire_guard_slice,
    acquire_slice,
    fetch_slice,
    preflight_slice,
    prepare_slice,
)
from refbias.config.slices.audit import audit_slice
from refbias.config.slices.competence import (
    competence_analysis_options,
    competence_answer_slice,
    competence_axis_slice,
    competence_hire_slice,
    competence_represent_slice,
    competence_steer_slice,
)
from refbias.config.slices.evaluate import generate_slice, prompts_slice, score_slice, topics_slice
from refbias.config.slices.metamorphic import (
    metamorphic_ask_slice,
    metamorphic_label_slice,
    metamorphic_sample_slice,
    mitigate_slice,
)
from refbias.config.slices.pictures import analyse_slice, figures_slice, provenance_slice, report_slice, tables_slice
from refbias.config.slices.represent import represent_slice, shift_slice
from refbias.config.slices.training import finetune_slice, finetune_watched_slice, merge_slice, seeds_slice

__all__ = [
    "ablate_slice",
    "ablation_sentences_slice",
    "acquire_guard_slice",
    "acquire_slice",
    "analyse_ablations_slice",
    "analyse_slice",
    "audit_slice",
    "competence_analysis_options",
    "competence_answer_slice",
    "competence_axis_slice",
    "competence_hire_slice",
    "competence_represent_slice",
    "competence_steer_slice",
    "fetch_slice",
    "figures_slice",
    "finetune_slice",
    "finetune_watched_slice",
    "generate_slice",
    "merge_slice",
    "metamorphic_ask_slice",
    "metamorphic_label_slice",
    "metamorphic_sample_slice",
    "mitigate_slice",
    "preflight_slice",
    "prepare_slice",
    "prompts_slice",
    "provenance_slice",
    "report_slice",
    "represent_ablations_slice",
    "represent_slice",
    "score_slice",
    "seeds_slice",
    "shift_slice",
    "tables_slice",
    "topics_slice",
]
