# Observations and table 1.


rule analyse:
    input:
        shift=f"{RESULTS}/shift/delta_b.csv",
        scores=expand(
            f"{RESULTS}/scores/{{model}}/{{source}}/outputs.csv",
            model=MODELS,
            source=SOURCES,
        ),
    output:
        table1=report(
            f"{RESULTS}/tables/table1.csv",
            caption="../report/table1.rst",
            category="Tables",
            labels={"table": "Table 1"},
        ),
        markdown=f"{RESULTS}/tables/table1.md",
        latex=f"{RESULTS}/tables/table1.tex",
        observations=report(
            f"{RESULTS}/tables/observations.csv",
            caption="../report/observations.rst",
            category="Tables",
            labels={"table": "Observations"},
        ),
        units=report(
            f"{RESULTS}/tables/units.csv",
            caption="../report/units.rst",
            category="Tables",
            labels={"table": "Units"},
        ),
        curves=f"{RESULTS}/tables/auc_threshold.csv",
        manifest=f"{RESULTS}/tables/manifest.json",
    log:
        f"{RESULTS}/logs/analyse.log",
    benchmark:
        f"{RESULTS}/benchmarks/analyse.tsv"
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        settings=slices.analyse_slice(CONFIG),
        code=code("analyse"),
        data=[
            content(CONFIG.stimuli.groups_file, "stimuli", "groups.tsv"),
            content(None, "paper", "tables.json"),
        ],
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias analyse --log {log} --settings {params.settings:q} --shift {input.shift:q}"
        " --scores {input.scores:q} --output {params.folder:q}"
