# Sentence embeddings (one process a spectrum) and the shift dB.


rule represent:
    input:
        f"{RESULTS}/models/{{model}}/manifest.json",
        spectrum_endpoints,
    output:
        f"{RESULTS}/embeddings/{{model}}/{{source}}/manifest.json",
    log:
        f"{RESULTS}/logs/represent/{{model}}/{{source}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/represent/{{model}}/{{source}}.tsv"
    conda:
        ENVIRONMENT
    threads: torch_threads(CONFIG.compute.device)
    resources:
        gpu=gpus(CONFIG.compute.device),
        mem_mb=8000,
        runtime=60,
    params:
        settings=lambda w: slices.represent_slice(CONFIG, w.model, w.source),
        code=code("represent"),
        data=stimuli_content(),
        reference=lambda w: f"{RESULTS}/models/{w.model}",
        endpoints=endpoint_options,
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias represent --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} {params.endpoints:q} --output {params.folder:q}"


rule shift:
    input:
        expand(
            f"{RESULTS}/embeddings/{{model}}/{{source}}/manifest.json",
            model=MODELS,
            source=SOURCES,
        ),
    output:
        table=report(
            f"{RESULTS}/shift/delta_b.csv",
            caption="../report/delta_b.rst",
            category="Tables",
            labels={"table": "dB by group"},
        ),
        manifest=f"{RESULTS}/shift/manifest.json",
    log:
        f"{RESULTS}/logs/shift.log",
    benchmark:
        f"{RESULTS}/benchmarks/shift.tsv"
    conda:
        ENVIRONMENT
    threads: ALL_CORES
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        settings=slices.shift_slice(CONFIG),
        code=code("shift"),
        embeddings=subpath(input[0], ancestor=3),
        models=MODELS,
        regimes=REGIMES,
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias shift --log {log} --settings {params.settings:q} --embeddings {params.embeddings:q}"
        " --models {params.models:q} --regimes {params.regimes:q} --output {params.folder:q}"
