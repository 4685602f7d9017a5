# Full and LoRA fine-tuning on the two splits.


rule finetune:
    input:
        f"{RESULTS}/models/{{model}}/manifest.json",
        prepared,
    output:
        f"{RESULTS}/training/{{model}}/{{regime}}/{{split}}/manifest.json",
        f"{RESULTS}/training/{{model}}/{{regime}}/{{split}}/loss.csv",
        *watched(f"{RESULTS}/training/{{model}}/{{regime}}/{{split}}/bias_shift.csv"),
    log:
        f"{RESULTS}/logs/finetune/{{model}}/{{regime}}/{{split}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/finetune/{{model}}/{{regime}}/{{split}}.tsv"
    # before everything that can wait; a full training's memory is that of three other jobs
    priority: 1
    conda:
        ENVIRONMENT
    threads: lambda w: (torch_threads(regime_device(w.regime)) if w.regime == "lora" else ALL_CORES)
    resources:
        gpu=lambda w: training_gpus(w.regime),
        mem_mb=12000,
        runtime=720,
    params:
        settings=training_settings,
        code=code(TRAINING_STAGE),
        data=training_content,
        reference=subpath(input[0], parent=True),
        folder=subpath(output[0], parent=True),
        # outside the declared outputs: Snakemake deletes those before a retry
        work=lambda w: f"{RESULTS}/work/training/{w.model}/{w.regime}/{w.split}",
    shell:
        f"python -m refbias {TRAINING_STAGE}"
        " --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} --output {params.folder:q} --work {params.work:q}"
