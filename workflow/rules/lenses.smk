# Three lenses on one page: dB, metamorphic tests, competence; ask for the target `lenses`.


rule lens_pages:
    input:
        verdicts=lens_verdicts,
        shift=lens_shifts,
        answers=lens_summaries,
    output:
        expand(
            f"{LENSES}/{{{{model}}}}/{{page}}.{{suffix}}",
            page=LENS_PAGES,
            suffix=["html", "json"],
        ),
        manifest=f"{LENSES}/{{model}}/manifest.json",
    log:
        f"{RESULTS}/logs/lenses/{{model}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/lenses/{{model}}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("lenses"),
        data=[
            content(resources.report_path()),
            content(CONFIG.stimuli.groups_file, "stimuli", "groups.tsv"),
        ],
        options=lens_options,
        subjects=LOOKED_AT,
        method="rr" if "rr" in CONFIG.shift.methods else CONFIG.shift.methods[0],
        competence=COMPETENCE,
        stand_ins=stand_in_option(MODELS),
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias lenses --log {log} --model {wildcards.model} --subjects {params.subjects}"
        " --competence {params.competence:q} {params.options:q} --method {params.method} {params.stand_ins:q}"
        " --output {params.folder:q}"


rule lenses:
    input:
        expand(f"{LENSES}/{{model}}/manifest.json", model=MODELS),
    localrule: True
