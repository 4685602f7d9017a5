# Checkpoints held against a reference; not part of a run: ask for the target `audit`.


rule audit_checkpoints:
    input:
        audited_files(),
    output:
        result=f"{RESULTS}/audit/audit.json",
        page=f"{RESULTS}/audit/report.html",
        table=f"{RESULTS}/audit/groups.csv",
        manifest=f"{RESULTS}/audit/manifest.json",
    log:
        f"{RESULTS}/logs/audit.log",
    benchmark:
        f"{RESULTS}/benchmarks/audit.tsv"
    conda:
        ENVIRONMENT
    threads: ALL_CORES
    resources:
        gpu=gpus(CONFIG.audit.device),
        mem_mb=8000,
        runtime=240,
    params:
        settings=slices.audit_slice(CONFIG),
        code=code("audit"),
        data=audit_content(),
        folder=subpath(output.result, parent=True),
    shell:
        "python -m refbias audit --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --output {params.folder:q}"


rule audit:
    input:
        f"{RESULTS}/audit/audit.json",
    localrule: True
