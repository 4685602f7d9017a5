# Reference models, and the models of scorers and of the topic mapper.


rule acquire:
    output:
        f"{RESULTS}/models/{{model}}/manifest.json",
    log:
        f"{RESULTS}/logs/acquire/{{model}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/acquire/{{model}}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=6000,
        runtime=60,
    params:
        settings=lambda w: settings.acquire_slice(CONFIG, w.model),
        code=code("acquire"),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias acquire --log {log} --settings {params.settings:q} --output {params.folder:q}"


rule acquire_guard:
    output:
        f"{RESULTS}/guards/{{guard}}/manifest.json",
    log:
        f"{RESULTS}/logs/acquire_guard/{{guard}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/acquire_guard/{{guard}}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=6000,
        runtime=60,
    params:
        settings=lambda w: settings.acquire_guard_slice(CONFIG, w.guard),
        code=code("acquire"),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias acquire --log {log} --settings {params.settings:q} --output {params.folder:q}"
