# Fine-tunings repeated with other seeds: only the endpoints, only their dB (figure 5). Off unless
# the configuration names seeds.


if CONFIG.training_seeds:

    rule finetune_seed:
        input:
            f"{RESULTS}/models/{{model}}/manifest.json",
            prepared,
        output:
            f"{RESULTS}/training_seeds/{{model}}/{{regime}}/{{split}}/s{{seed}}/manifest.json",
            f"{RESULTS}/training_seeds/{{model}}/{{regime}}/{{split}}/s{{seed}}/loss.csv",
        log:
            f"{RESULTS}/logs/finetune_seed/{{model}}/{{regime}}/{{split}}/s{{seed}}.log",
        benchmark:
            f"{RESULTS}/benchmarks/finetune_seed/{{model}}/{{regime}}/{{split}}/s{{seed}}.tsv"
        conda:
            ENVIRONMENT
        threads: ALL_CORES
        resources:
            gpu=lambda w: training_gpus(w.regime),
            mem_mb=12000,
            runtime=720,
        params:
            settings=lambda w: slices.finetune_slice(
                CONFIG, w.model, w.regime, w.split, int(w.seed)
            ),
            code=code("finetune"),
            data=split_content,
            reference=subpath(input[0], parent=True),
            folder=subpath(output[0], parent=True),
            work=lambda w: f"{RESULTS}/work/training_seeds/{w.model}/{w.regime}/{w.split}/s{w.seed}",
        shell:
            "python -m refbias finetune --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
            " --reference {params.reference:q} --output {params.folder:q} --work {params.work:q}"

    rule represent_seed:
        input:
            f"{RESULTS}/models/{{model}}/manifest.json",
            expand(
                f"{RESULTS}/training_seeds/{{{{model}}}}/{{{{regime}}}}/{{split}}/s{{{{seed}}}}/manifest.json",
                split=SPLITS,
            ),
        output:
            f"{RESULTS}/training_seeds/{{model}}/{{regime}}/embeddings/s{{seed}}/manifest.json",
        log:
            f"{RESULTS}/logs/represent_seed/{{model}}/{{regime}}/s{{seed}}.log",
        benchmark:
            f"{RESULTS}/benchmarks/represent_seed/{{model}}/{{regime}}/s{{seed}}.tsv"
        conda:
            ENVIRONMENT
        threads: torch_threads(CONFIG.compute.device)
        resources:
            gpu=gpus(CONFIG.compute.device),
            mem_mb=8000,
            runtime=30,
        params:
            settings=lambda w: slices.represent_slice(
                CONFIG, w.model, w.regime, [0.0, 1.0]
            ),
            code=code("represent"),
            data=stimuli_content(),
            reference=subpath(input[0], parent=True),
            endpoints=lambda w: [
                part
                for split in SPLITS
                for part in (
                    f"--{split}",
                    f"{RESULTS}/training_seeds/{w.model}/{w.regime}/{split}/s{w.seed}",
                )
            ],
            folder=subpath(output[0], parent=True),
        shell:
            "python -m refbias represent --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
            " --reference {params.reference:q} {params.endpoints:q} --output {params.folder:q}"

    rule training_seeds:
        input:
            repeats=expand(
                f"{RESULTS}/training_seeds/{{model}}/{{regime}}/embeddings/s{{seed}}/manifest.json",
                model=CONFIG.training_seeds.model_slugs(CONFIG.models),
                regime=CONFIG.training_seeds.regimes,
                seed=CONFIG.training_seeds.seeds,
            ),
            run=expand(
                f"{RESULTS}/embeddings/{{model}}/{{source}}/manifest.json",
                model=CONFIG.training_seeds.model_slugs(CONFIG.models),
                source=["reference", *CONFIG.training_seeds.regimes],
            ),
        output:
            table=f"{RESULTS}/ablations/training_seeds.csv",
            manifest=f"{RESULTS}/ablations/training_seeds.manifest.json",
        log:
            f"{RESULTS}/logs/training_seeds.log",
        benchmark:
            f"{RESULTS}/benchmarks/training_seeds.tsv"
        conda:
            ENVIRONMENT
        threads: ALL_CORES
        resources:
            mem_mb=4000,
            runtime=30,
        params:
            settings=slices.seeds_slice(CONFIG),
            code=code("seeds"),
            embeddings=f"{RESULTS}/embeddings",
            repeats=f"{RESULTS}/training_seeds",
            models=CONFIG.training_seeds.model_slugs(CONFIG.models),
            regimes=CONFIG.training_seeds.regimes,
        shell:
            "python -m refbias seeds --log {log} --settings {params.settings:q} --embeddings {params.embeddings:q}"
            " --repeats {params.repeats:q} --models {params.models:q} --regimes {params.regimes:q}"
            " --output {output.table:q}"
