# Generation and, apart from it, scoring: a crash or a change of scorer never generates again.

# read once: it looks into the prompts' file
TOPIC_MAP = topic_map()

if TOPIC_MAP:

    rule topics:
        input:
            prompt_sources("wildguardmix"),
            model=topic_model(),
        output:
            table=TOPIC_MAP,
            manifest=f"{RESULTS}/topics/manifest.json",
        log:
            f"{RESULTS}/logs/topics.log",
        benchmark:
            f"{RESULTS}/benchmarks/topics.tsv"
        conda:
            ENVIRONMENT
        threads: torch_threads(CONFIG.compute.device) if topic_model() else 1
        resources:
            **({"gpu": gpus(CONFIG.compute.device)} if topic_model() else {}),
            mem_mb=24000 if topic_model() else 2000,
            runtime=60,
        params:
            settings=slices.topics_slice(CONFIG),
            code=code("topics"),
            data=topics_content(),
            model=(
                ["--model-folder", f"{RESULTS}/guards/{settings.TOPIC_MODEL}"]
                if topic_model()
                else []
            ),
            folder=subpath(output[0], parent=True),
        shell:
            "python -m refbias topics make --log {log}"
            + (" --gpu {resources.gpu}" if topic_model() else "")
            + " --settings {params.settings:q} {params.model:q} --output {params.folder:q}"


rule generate:
    input:
        f"{RESULTS}/models/{{model}}/manifest.json",
        audited_checkpoint,
        prompt_sources(),
        topics=TOPIC_MAP or [],
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
    threads: torch_threads(CONFIG.compute.device)
    resources:
        gpu=CONFIG.generation.gpus() * gpus(CONFIG.compute.device),
        mem_mb=8000,
        runtime=240,
    params:
        settings=lambda w: slices.generate_slice(CONFIG, w.model, TOPIC_MAP),
        code=code("generate"),
        data=prompt_content(),
        # what asks for the output is not recorded: where an interpreter lies reruns nothing
        interpreter=lambda w, output: interpreter_option(),
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
        guards=[guard_manifest(guard) for guard in GUARDS],
    output:
        table=f"{RESULTS}/scores/{{model}}/{{source}}/outputs.csv",
        manifest=f"{RESULTS}/scores/{{model}}/{{source}}/manifest.json",
    log:
        f"{RESULTS}/logs/score/{{model}}/{{source}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/score/{{model}}/{{source}}.tsv"
    conda:
        ENVIRONMENT
    # a scorer that runs a model asks for what a model needs; one by rule asks for nothing
    threads: torch_threads(CONFIG.compute.device) if GUARDS else 1
    resources:
        **({"gpu": gpus(CONFIG.compute.device)} if GUARDS else {}),
        mem_mb=24000 if GUARDS else 4000,
        runtime=240 if GUARDS else 120,
    params:
        settings=slices.score_slice(CONFIG),
        code=code("judge" if GUARDS else "score"),
        data=scorer_content(),
        guards=["--guards", f"{RESULTS}/guards"] if GUARDS else [],
        # not recorded either
        vllm=lambda w, output: guard_interpreter_option(),
        generations=lambda w: f"{RESULTS}/generations/{w.model}/{w.source}",
        checkpoints=lambda w: ["reference"] if w.source == "reference" else CHECKPOINTS,
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias "
        + ("judge --gpu {resources.gpu}" if GUARDS else "score")
        + " --log {log} --settings {params.settings:q} --generations {params.generations:q}"
        " --model {wildcards.model} --source {wildcards.source} --checkpoints {params.checkpoints:q}"
        " {params.guards:q} {params.vllm:q} --output {params.folder:q}"
