# Merged checkpoints between the two endpoints. Adapters are small and stay; a merged full
# checkpoint is temporary, and merge i waits until merge i - max_merged was used.


rule merge_full:
    input:
        unharmful=lambda w: endpoint_done(w.model, "full", "unharmful"),
        harmful=lambda w: endpoint_done(w.model, "full", "harmful"),
        earlier=earlier_merge_was_used,
    output:
        manifest=f"{RESULTS}/spectrum/{{model}}/full/{{checkpoint}}/manifest.json",
        weights=temp(
            f"{RESULTS}/spectrum/{{model}}/full/{{checkpoint}}/model.safetensors"
        ),
    log:
        f"{RESULTS}/logs/merge/{{model}}/full/{{checkpoint}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/merge/{{model}}/full/{{checkpoint}}.tsv"
    conda:
        ENVIRONMENT
    threads: torch_threads("cpu")
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        settings=lambda w: slices.merge_slice(CONFIG, "full", w.checkpoint),
        code=code("merge"),
        unharmful=lambda w: endpoint(w.model, "full", "unharmful"),
        harmful=lambda w: endpoint(w.model, "full", "harmful"),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias merge --log {log} --settings {params.settings:q}"
        " --unharmful {params.unharmful:q} --harmful {params.harmful:q} --output {params.folder:q}"


rule merge_lora:
    input:
        unharmful=lambda w: endpoint_done(w.model, "lora", "unharmful"),
        harmful=lambda w: endpoint_done(w.model, "lora", "harmful"),
    output:
        expand(
            f"{RESULTS}/spectrum/{{{{model}}}}/lora/{{checkpoint}}/manifest.json",
            checkpoint=INNER,
        ),
    log:
        f"{RESULTS}/logs/merge/{{model}}/lora.log",
    benchmark:
        f"{RESULTS}/benchmarks/merge/{{model}}/lora.tsv"
    conda:
        ENVIRONMENT
    threads: torch_threads("cpu")
    resources:
        mem_mb=8000,
        runtime=30,
    params:
        settings=(
            [slices.merge_slice(CONFIG, "lora", slug) for slug in INNER]
            if "lora" in REGIMES
            else []
        ),
        code=code("merge"),
        unharmful=lambda w: endpoint(w.model, "lora", "unharmful"),
        harmful=lambda w: endpoint(w.model, "lora", "harmful"),
        folders=lambda w: [
            f"{RESULTS}/spectrum/{w.model}/lora/{slug}" for slug in INNER
        ],
    shell:
        "python -m refbias merge --log {log} --settings {params.settings:q}"
        " --unharmful {params.unharmful:q} --harmful {params.harmful:q} --output {params.folders:q}"
