# Generation and, apart from it, scoring: a crash or a change of scorer never generates again.


def prompt_content():
    names = {
        "wildguardmix": [("wildguardmix_test.jsonl",)],
        "decodingtrust": [("decodingtrust_user_prompts.csv",), ("decodingtrust_system_prompts.csv",)],
        "toxigen": [("toxigen",)],
    }
    return {
        benchmark: [content(chosen.prompts, "quickstart", *name) for name in names[benchmark]]
        for benchmark, chosen in CONFIG.benchmarks.enabled().items()
    }


rule generate_reference:
    input:
        f"{RESULTS}/models/{{model}}/manifest.json",
    output:
        f"{RESULTS}/generations/{{model}}/reference/reference/manifest.json",
        expand(
            f"{RESULTS}/generations/{{{{model}}}}/reference/reference/{{benchmark}}.jsonl",
            benchmark=BENCHMARKS,
        ),
    params:
        settings=lambda w: settings.generate_slice(CONFIG, w.model),
        code=code("generate"),
        data=prompt_content(),
        reference=subpath(input[0], parent=True),
        folder=subpath(output[0], parent=True),
        work=lambda w: f"{RESULTS}/work/generation/{w.model}/reference/reference",
    log:
        f"{RESULTS}/logs/generate/{{model}}/reference/reference.log",
    benchmark:
        f"{RESULTS}/benchmarks/generate/{{model}}/reference/reference.tsv"
    conda:
        ENVIRONMENT
    threads: TORCH_THREADS
    resources:
        gpu=1,
        mem_mb=8000,
        runtime=240,
    shell:
        "python -m refbias generate --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} --name reference --output {params.folder:q} --work {params.work:q}"


use rule generate_reference as generate with:
    input:
        f"{RESULTS}/models/{{model}}/manifest.json",
        lambda w: checkpoint_files(w.model, w.regime, w.checkpoint),
    output:
        f"{RESULTS}/generations/{{model}}/{{regime}}/{{checkpoint}}/manifest.json",
        expand(
            f"{RESULTS}/generations/{{{{model}}}}/{{{{regime}}}}/{{{{checkpoint}}}}/{{benchmark}}.jsonl",
            benchmark=BENCHMARKS,
        ),
    params:
        settings=lambda w: settings.generate_slice(CONFIG, w.model),
        code=code("generate"),
        data=prompt_content(),
        reference=subpath(input[0], parent=True),
        checkpoint=lambda w: checkpoint_dir(w.model, w.regime, w.checkpoint),
        folder=subpath(output[0], parent=True),
        work=lambda w: f"{RESULTS}/work/generation/{w.model}/{w.regime}/{w.checkpoint}",
    log:
        f"{RESULTS}/logs/generate/{{model}}/{{regime}}/{{checkpoint}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/generate/{{model}}/{{regime}}/{{checkpoint}}.tsv"
    shell:
        "python -m refbias generate --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} --checkpoint {params.checkpoint:q} --name {wildcards.checkpoint}"
        " --output {params.folder:q} --work {params.work:q}"


def generated(w):
    slugs = ["reference"] if w.source == "reference" else CHECKPOINTS
    return expand(f"{RESULTS}/generations/{w.model}/{w.source}/{{slug}}/manifest.json", slug=slugs)


rule score:
    input:
        generated,
    output:
        table=f"{RESULTS}/scores/{{model}}/{{source}}/outputs.csv",
        manifest=f"{RESULTS}/scores/{{model}}/{{source}}/manifest.json",
    params:
        settings=settings.score_slice(CONFIG),
        code=code("score"),
        data=[content(None, "standin"), content(None, "benchmarks")],
        generations=lambda w: f"{RESULTS}/generations/{w.model}/{w.source}",
        checkpoints=lambda w: ["reference"] if w.source == "reference" else CHECKPOINTS,
        folder=subpath(output[0], parent=True),
    log:
        f"{RESULTS}/logs/score/{{model}}/{{source}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/score/{{model}}/{{source}}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=4000,
        runtime=120,
    shell:
        "python -m refbias score --log {log} --settings {params.settings:q} --generations {params.generations:q}"
        " --model {wildcards.model} --source {wildcards.source} --checkpoints {params.checkpoints:q}"
        " --output {params.folder:q}"
