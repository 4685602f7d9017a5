# refbias: does the shift dB of a fine-tuned model track its behaviour? (arXiv 2609.10060)
#
# Run `snakemake --cores 1 --resources gpu=1` for the quickstart, or name another configuration
# with --configfile config/<name>.yaml.

from snakemake.utils import min_version

min_version("9.0")

# Snakemake merges --configfile into the file named here, key by key, so the default is loaded
# only where no configuration was given: two runs' models must not mix, and a file that names no
# model must not train the default's under its own name.
if not workflow.configfiles and "models" not in config:

    configfile: "config/quickstart.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/lookups/content.smk"


# a run without models is an audit, or asks interfaces, alone: the other rules have nothing to be about
if MODELS:

    include: "workflow/rules/lookups/acquire.smk"
    include: "workflow/rules/lookups/checkpoints.smk"
    include: "workflow/rules/lookups/evaluate.smk"
    include: "workflow/rules/lookups/ablations.smk"
    include: "workflow/rules/lookups/pictures.smk"
    include: "workflow/rules/lookups/competence.smk"
    include: "workflow/rules/acquire.smk"
    include: "workflow/rules/finetune.smk"
    include: "workflow/rules/spectrum.smk"
    include: "workflow/rules/represent.smk"
    include: "workflow/rules/training_seeds.smk"
    include: "workflow/rules/evaluate.smk"
    include: "workflow/rules/analyse.smk"
    include: "workflow/rules/ablations.smk"
    include: "workflow/rules/pictures.smk"
    include: "workflow/rules/two_stage.smk"
    include: "workflow/rules/competence.smk"


# models behind an interface need none of the run's own
if MODELS or CONFIG.metamorphic.endpoints:

    include: "workflow/rules/lookups/metamorphic.smk"
    include: "workflow/rules/metamorphic.smk"


if MODELS:

    include: "workflow/rules/lookups/lenses.smk"
    include: "workflow/rules/lenses.smk"


if CONFIG.audit:

    include: "workflow/rules/lookups/audit.smk"
    include: "workflow/rules/audit.smk"


report: "workflow/report/workflow.rst"


if MODELS:

    rule all:
        default_target: True
        input:
            whole_run(
                f"{RESULTS}/report.html",
                *training_seeds_table(),
                *ablation_tables(),
                f"{RESULTS}/manifest.json",
            ),

elif CONFIG.audit:

    rule all:
        default_target: True
        input:
            audit_results(),

else:

    rule all:
        default_target: True
        input:
            f"{META}/report.html",
