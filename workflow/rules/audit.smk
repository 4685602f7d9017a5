# Checkpoints held against a reference; not part of a run: ask for the target `audit`.
#
# A condition of `audit.fail_on` that is met fails the rule `audit_gate`, and so the run, after the result is there:
# a failed job's files are removed, so the audit itself must not fail.


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


if CONFIG.audit.fail_on:

    rule audit_gate:
        input:
            f"{RESULTS}/audit/audit.json",
        output:
            f"{RESULTS}/audit/gate.json",
        log:
            f"{RESULTS}/logs/audit_gate.log",
        localrule: True
        conda:
            ENVIRONMENT
        params:
            code=code("audit_gate"),
            conditions=[f"--fail-on={text}" for text in CONFIG.audit.fail_on],
        shell:
            "python -m refbias audit-gate --log {log} {input:q} {params.conditions:q} --output {output:q}"


rule audit:
    input:
        audit_results(),
    localrule: True
