# Figures and the report, from stored tables alone.


rule figures:
    input:
        observations=f"{RESULTS}/tables/observations.csv",
        table1=f"{RESULTS}/tables/table1.csv",
        delta_b=f"{RESULTS}/shift/delta_b.csv",
        losses=list(losses().values()),
    output:
        figure2=report(
            expand(f"{FIGURES}/{{name}}.png", name=figure_names("figure2")),
            caption="../report/figure2.rst",
            category="Figures",
        ),
        roc=report(
            expand(f"{FIGURES}/{{name}}.png", name=figure_names("roc")),
            caption="../report/roc.rst",
            category="Figures",
        ),
        auc_threshold=report(
            expand(f"{FIGURES}/{{name}}.png", name=figure_names("auc_threshold")),
            caption="../report/auc_threshold.rst",
            category="Figures",
        ),
        spectrum=report(
            expand(f"{FIGURES}/{{name}}.png", name=figure_names("spectrum")),
            caption="../report/spectrum.rst",
            category="Figures",
        ),
        loss=report(
            expand(f"{FIGURES}/{{name}}.png", name=figure_names("loss")),
            caption="../report/loss.rst",
            category="Figures",
        ),
        vectors=expand(f"{FIGURES}/{{name}}.pdf", name=figure_names()),
        manifest=f"{FIGURES}/manifest.json",
    log:
        f"{RESULTS}/logs/figures.log",
    benchmark:
        f"{RESULTS}/benchmarks/figures.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=3000,
        runtime=20,
    params:
        settings=settings.figures_slice(CONFIG),
        code=code("figures"),
        data=content(CONFIG.stimuli.groups_file, "stimuli", "groups.tsv"),
        losses=[f"{name}={path}" for name, path in losses().items()],
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias figures --log {log} --settings {params.settings:q} --observations {input.observations:q}"
        " --table1 {input.table1:q} --delta-b {input.delta_b:q} --loss {params.losses:q} --output {params.folder:q}"


rule report:
    input:
        figures=f"{FIGURES}/manifest.json",
        tables=f"{RESULTS}/tables/manifest.json",
        shift=f"{RESULTS}/shift/manifest.json",
        manifests=list(manifests().values()),
    output:
        report(
            f"{RESULTS}/report.html",
            caption="../report/report.rst",
            category="Report",
        ),
    log:
        f"{RESULTS}/logs/report.log",
    benchmark:
        f"{RESULTS}/benchmarks/report.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        settings=settings.report_slice(CONFIG),
        code=code("report"),
        data=[
            content(resources.report_path()),
            content(CONFIG.stimuli.groups_file, "stimuli", "groups.tsv"),
        ],
        figures=subpath(input.figures, parent=True),
        tables=subpath(input.tables, parent=True),
        shift=subpath(input.shift, parent=True),
        manifests=[f"{role}={path}" for role, path in manifests().items()],
    shell:
        "python -m refbias report --log {log} --settings {params.settings:q} --tables {params.tables:q}"
        " --shift {params.shift:q} --figures {params.figures:q} --manifests {params.manifests:q} --output {output:q}"
