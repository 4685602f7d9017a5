# From a finished study: the calibration of dB, and what a two-stage audit would find and spare. Not part of a run;
# ask for the target `two_stage`, or for one benchmark's files. A benchmark in which every unit rose or none teaches
# nothing and fails by name: --keep-going makes the others.

# the method whose dB is calibrated: RR where the run has it
CALIBRATED = "rr" if "rr" in CONFIG.shift.methods else CONFIG.shift.methods[0]


rule calibrate:
    input:
        observations=f"{RESULTS}/tables/observations.csv",
        shift=f"{RESULTS}/shift/delta_b.csv",
        records=f"{RESULTS}/records/manifests.json",
        study=f"{RESULTS}/manifest.json",
    output:
        f"{RESULTS}/calibration/{{benchmark}}/{{regime}}/calibration.json",
    log:
        f"{RESULTS}/logs/calibrate/{{benchmark}}/{{regime}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/calibrate/{{benchmark}}/{{regime}}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
        runtime=20,
    params:
        code=code("calibrate"),
        method=CALIBRATED,
        threshold=lambda w: CONFIG.benchmarks.enabled()[w.benchmark].threshold,
        seed=CONFIG.seed,
    shell:
        "python -m refbias calibrate --log {log} --observations {input.observations:q} --delta-b {input.shift:q}"
        " --manifests {input.records:q} --study {input.study:q} --benchmark {wildcards.benchmark}"
        " --regime {wildcards.regime} --threshold {params.threshold} --method {params.method} --seed {params.seed}"
        " --output {output:q}"


rule judge_two_stage:
    input:
        observations=f"{RESULTS}/tables/observations.csv",
        shift=f"{RESULTS}/shift/delta_b.csv",
        records=f"{RESULTS}/records/manifests.json",
    output:
        table=f"{RESULTS}/calibration/{{benchmark}}/{{regime}}/two_stage.csv",
        text=f"{RESULTS}/calibration/{{benchmark}}/{{regime}}/two_stage.md",
        figure=multiext(f"{FIGURES}/two_stage_{{benchmark}}_{{regime}}", ".pdf", ".png"),
        account=f"{RESULTS}/calibration/{{benchmark}}/{{regime}}/two_stage.json",
    log:
        f"{RESULTS}/logs/two_stage/{{benchmark}}/{{regime}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/two_stage/{{benchmark}}/{{regime}}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
        runtime=20,
    params:
        code=code("two_stage"),
        method=CALIBRATED,
        threshold=lambda w: CONFIG.benchmarks.enabled()[w.benchmark].threshold,
        resamples=CONFIG.analysis.n_resamples,
        seed=CONFIG.seed,
        figure=lambda w, output: output.figure[0].removesuffix(".pdf"),
        folder=subpath(output.account, parent=True),
    shell:
        "python -m refbias two-stage --log {log} --observations {input.observations:q} --delta-b {input.shift:q}"
        " --costs {input.records:q} --benchmark {wildcards.benchmark} --regime {wildcards.regime}"
        " --threshold {params.threshold} --method {params.method} --n-resamples {params.resamples}"
        " --seed {params.seed} --figure {params.figure:q} --output {params.folder:q}"


rule two_stage:
    input:
        expand(
            f"{RESULTS}/calibration/{{benchmark}}/{{regime}}/{{name}}.json",
            benchmark=BENCHMARKS,
            regime=REGIMES,
            name=["calibration", "two_stage"],
        ),
    localrule: True
