# Ablations of dB: sentences, embeddings (one process a spectrum), cells and their table. Nothing
# here is run unless the configuration has a section `ablations`.


rule ablation_sentences:
    input:
        fetched_anchors(),
    output:
        table=f"{RESULTS}/ablation_sentences/sentences.tsv",
        manifest=f"{RESULTS}/ablation_sentences/manifest.json",
    log:
        f"{RESULTS}/logs/ablation_sentences.log",
    benchmark:
        f"{RESULTS}/benchmarks/ablation_sentences.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        settings=lambda w: slices.ablation_sentences_slice(CONFIG),
        code=code("ablation_sentences"),
        # a function: large data sets are hashed only where this rule is at stake
        data=ablation_content,
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias ablation_sentences --log {log} --settings {params.settings:q} --output {params.folder:q}"


rule represent_ablations:
    input:
        f"{RESULTS}/models/{{model}}/manifest.json",
        spectrum_endpoints,
        sentences=f"{RESULTS}/ablation_sentences/sentences.tsv",
    output:
        f"{RESULTS}/ablation_embeddings/{{model}}/{{source}}/manifest.json",
    log:
        f"{RESULTS}/logs/represent_ablations/{{model}}/{{source}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/represent_ablations/{{model}}/{{source}}.tsv"
    conda:
        ENVIRONMENT
    threads: torch_threads(CONFIG.compute.device)
    resources:
        gpu=gpus(CONFIG.compute.device),
        mem_mb=12000,
        runtime=120,
    params:
        settings=lambda w: slices.represent_ablations_slice(CONFIG, w.model, w.source),
        code=code("represent_ablations"),
        reference=lambda w: f"{RESULTS}/models/{w.model}",
        endpoints=endpoint_options,
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias represent_ablations --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} {params.endpoints:q} --sentences {input.sentences:q}"
        " --output {params.folder:q}"


rule ablate:
    input:
        sentences=f"{RESULTS}/ablation_sentences/manifest.json",
        reference=f"{RESULTS}/ablation_embeddings/{{model}}/reference/manifest.json",
        audited=f"{RESULTS}/ablation_embeddings/{{model}}/{{regime}}/manifest.json",
    output:
        table=f"{RESULTS}/ablations/{{model}}/{{regime}}/delta_b.csv",
        manifest=f"{RESULTS}/ablations/{{model}}/{{regime}}/manifest.json",
    log:
        f"{RESULTS}/logs/ablate/{{model}}/{{regime}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/ablate/{{model}}/{{regime}}.tsv"
    conda:
        ENVIRONMENT
    threads: ALL_CORES
    resources:
        mem_mb=6000,
        runtime=60,
    params:
        settings=lambda w: slices.ablate_slice(CONFIG, w.model, w.regime),
        code=code("ablate"),
        sentences=subpath(input.sentences, parent=True),
        reference=subpath(input.reference, parent=True),
        audited=subpath(input.audited, parent=True),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias ablate --log {log} --settings {params.settings:q} --sentences {params.sentences:q}"
        " --reference {params.reference:q} --audited {params.audited:q} --output {params.folder:q}"


rule analyse_ablations:
    input:
        delta_b=ablated_spectra(),
        units=f"{RESULTS}/tables/units.csv",
    output:
        table=report(
            f"{RESULTS}/tables/ablations.csv",
            caption="../report/ablations.rst",
            category="Tables",
            labels={"table": "Ablations"},
        ),
        manifest=f"{RESULTS}/tables/ablations.json",
    log:
        f"{RESULTS}/logs/analyse_ablations.log",
    benchmark:
        f"{RESULTS}/benchmarks/analyse_ablations.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        settings=slices.analyse_ablations_slice(CONFIG),
        code=code("analyse_ablations"),
        data=content(CONFIG.stimuli.groups_file, "stimuli", "groups.tsv"),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias analyse_ablations --log {log} --settings {params.settings:q} --delta-b {input.delta_b:q}"
        " --units {input.units:q} --output {params.folder:q}"
