# Reference models.


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
