# Reference models, data sets and the splits made of them. Local rules: on a cluster they run where
# the network is, and the jobs of the compute nodes find everything in the run's folder.


localrules:
    preflight,
    acquire,
    acquire_guard,
    fetch,
    prepare,


rule preflight:
    output:
        f"{RESULTS}/preflight.json",
    log:
        f"{RESULTS}/logs/preflight.log",
    benchmark:
        f"{RESULTS}/benchmarks/preflight.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        settings=slices.preflight_slice(CONFIG),
        code=code("preflight"),
    shell:
        # the node that fetches needs no GPU
        "python -m refbias preflight --log {log} --settings {params.settings:q} --without-gpu --output {output:q}"


rule acquire:
    input:
        lambda w: model_source(CONFIG.models[w.model].source),
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
        settings=lambda w: slices.acquire_slice(CONFIG, w.model),
        code=code("acquire"),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias acquire --log {log} --settings {params.settings:q} --output {params.folder:q}"


rule acquire_guard:
    input:
        lambda w: model_source(settings.guard_source(CONFIG, w.guard)),
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
        settings=lambda w: slices.acquire_guard_slice(CONFIG, w.guard),
        code=code("acquire"),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias acquire --log {log} --settings {params.settings:q} --output {params.folder:q}"


rule fetch:
    input:
        lambda w: hub_is_open(getattr(CONFIG.data, w.dataset).source),
    output:
        f"{RESULTS}/data/{{dataset}}/manifest.json",
    log:
        f"{RESULTS}/logs/fetch/{{dataset}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/fetch/{{dataset}}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
        runtime=60,
    params:
        settings=lambda w: slices.fetch_slice(CONFIG, w.dataset),
        code=code("fetch"),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias fetch --log {log} --settings {params.settings:q} --output {params.folder:q}"


rule prepare:
    input:
        fetched("wildguardmix"),
    output:
        expand(
            f"{RESULTS}/splits/wildguard_{{split}}.jsonl",
            split=CONFIG.prepared_splits(),
        ),
        manifest=f"{RESULTS}/splits/manifest.json",
    log:
        f"{RESULTS}/logs/prepare.log",
    benchmark:
        f"{RESULTS}/benchmarks/prepare.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        settings=prepare_settings(),
        code=code("prepare"),
        data=prepare_content(),
        source=CONFIG.data_path("wildguardmix") or "",
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias prepare --log {log} --settings {params.settings:q} --data {params.source:q}"
        " --output {params.folder:q}"
