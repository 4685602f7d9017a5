# Generation and, apart from it, scoring: a crash or a change of scorer never generates again.


rule generate:
    input:
        f"{RESULTS}/models/{{model}}/manifest.json",
        audited_checkpoint,
    output:
        f"{RESULTS}/generations/{{model}}/{{source}}/{{checkpoint}}/manifest.json",
        expand(
            f"{RESULTS}/generations/{{{{model}}}}/{{{{source}}}}/{{{{checkpoint}}}}/{{file}}.jsonl",
            file=["prompts", *BENCHMARKS],
        ),
    log:
        f"{RESULTS}/logs/generate/{{model}}/{{source}}/{{checkpoint}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/generate/{{model}}/{{source}}/{{checkpoint}}.tsv"
    conda:
        GENERATION_ENVIRONMENT
    threads: TORCH_THREADS
    resources:
        gpu=CONFIG.generation.gpus(),
        mem_mb=8000,
        runtime=240,
    params:
        settings=lambda w: settings.generate_slice(CONFIG, w.model),
        code=code("generate"),
        data=prompt_content(),
        interpreter=interpreter_option(),
        reference=subpath(input[0], parent=True),
        checkpoint=checkpoint_option,
        folder=subpath(output[0], parent=True),
        work=lambda w: f"{RESULTS}/work/generation/{w.model}/{w.source}/{w.checkpoint}",
    shell:
        "python -m refbias generate {params.interpreter:q} --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} {params.checkpoint:q} --name {wildcards.checkpoint}"
        " --output {params.folder:q} --work {params.work:q}"


rule score:
    input:
        generated,
    output:
        table=f"{RESULTS}/scores/{{model}}/{{source}}/outputs.csv",
        manifest=f"{RESULTS}/scores/{{model}}/{{source}}/manifest.json",
    log:
        f"{RESULTS}/logs/score/{{model}}/{{source}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/score/{{model}}/{{source}}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        settings=settings.score_slice(CONFIG),
        code=code("score"),
        data=scorer_content(),
        generations=lambda w: f"{RESULTS}/generations/{w.model}/{w.source}",
        checkpoints=lambda w: ["reference"] if w.source == "reference" else CHECKPOINTS,
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias score --log {log} --settings {params.settings:q} --generations {params.generations:q}"
        " --model {wildcards.model} --source {wildcards.source} --checkpoints {params.checkpoints:q}"
        " --output {params.folder:q}"
