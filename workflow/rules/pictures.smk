# Tables, figures and the report, from stored results alone: what they need of models, generations and embeddings
# is in the records.


rule records:
    input:
        manifests=list(manifests().values()),
        losses=list(losses().values()),
    output:
        manifests=f"{RESULTS}/records/manifests.json",
        losses=f"{RESULTS}/records/losses.csv",
        manifest=f"{RESULTS}/records/manifest.json",
    log:
        f"{RESULTS}/logs/records.log",
    benchmark:
        f"{RESULTS}/benchmarks/records.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        code=code("records"),
        manifests=[f"{role}={path}" for role, path in manifests().items()],
        losses=[f"{name}={path}" for name, path in losses().items()],
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias records --log {log} --manifests {params.manifests:q} --losses {params.losses:q}"
        " --output {params.folder:q}"


rule tables:
    input:
        **picture_tables(),
        table1=f"{RESULTS}/tables/table1.csv",
        observations=f"{RESULTS}/tables/observations.csv",
        manifests=f"{RESULTS}/records/manifests.json",
    output:
        tables=report(
            [
                f"{RESULTS}/tables/{table.stem}.csv"
                for table in planned(pictures.TABLES[1:])
            ],
            caption="../report/tables.rst",
            category="Tables",
        ),
        reproduction=report(
            f"{RESULTS}/tables/reproduction.csv",
            caption="../report/reproduction.rst",
            category="Tables",
            labels={"table": "Reproduction"},
        ),
        texts=[
            f"{RESULTS}/tables/{stem}.{suffix}"
            for stem in [table.stem for table in planned(pictures.TABLES[1:])]
            + ["reproduction"]
            for suffix in TABLE_SUFFIXES[1:]
        ],
        manifest=f"{RESULTS}/tables/tables.manifest.json",
    log:
        f"{RESULTS}/logs/tables.log",
    benchmark:
        f"{RESULTS}/benchmarks/tables.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        settings=slices.tables_slice(CONFIG, ABLATIONS),
        code=code("tables"),
        data=[
            content(None, "paper", "tables.json"),
            *stimuli_content(),
            *variants_content(),
        ],
        optional=[
            part
            for name, path in picture_tables().items()
            for part in (f"--{name.replace('_', '-')}", path)
        ],
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias tables --log {log} --settings {params.settings:q} --table1 {input.table1:q}"
        " --observations {input.observations:q} --manifests {input.manifests:q} {params.optional:q}"
        " --output {params.folder:q}"


rule figures:
    input:
        **picture_tables(),
        observations=f"{RESULTS}/tables/observations.csv",
        table1=f"{RESULTS}/tables/table1.csv",
        delta_b=f"{RESULTS}/shift/delta_b.csv",
        losses=f"{RESULTS}/records/losses.csv",
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
        paper=report(
            [
                f"{FIGURES}/{figure.stem}.png"
                for figure in planned(pictures.FIGURES[1:])
            ],
            category="Figures",
        ),
        vectors=expand(
            f"{FIGURES}/{{name}}.pdf",
            name=figure_names()
            + [figure.stem for figure in planned(pictures.FIGURES[1:])],
        ),
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
        settings=slices.figures_slice(CONFIG, ABLATIONS),
        code=code("figures"),
        data=content(CONFIG.stimuli.groups_file, "stimuli", "groups.tsv"),
        optional=[
            part
            for name, path in picture_tables().items()
            for part in (f"--{name.replace('_', '-')}", path)
        ],
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias figures --log {log} --settings {params.settings:q} --observations {input.observations:q}"
        " --table1 {input.table1:q} --delta-b {input.delta_b:q} --losses {input.losses:q} {params.optional:q}"
        " --output {params.folder:q}"


# targets of one picture each: table_1 to table_7, figure_2 to figure_16
for target in pictures.PICTURES:

    rule:
        name:
            target
        input:
            lambda w, target=target: picture_files(target),
        localrule: True


rule provenance:
    input:
        manifests=f"{RESULTS}/records/manifests.json",
        table1=f"{RESULTS}/tables/manifest.json",
        tables=f"{RESULTS}/tables/tables.manifest.json",
    output:
        manifest=f"{RESULTS}/manifest.json",
        text=report(
            f"{RESULTS}/reproduce.md",
            caption="../report/provenance.rst",
            category="Report",
        ),
    log:
        f"{RESULTS}/logs/provenance.log",
    benchmark:
        f"{RESULTS}/benchmarks/provenance.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        settings=slices.provenance_slice(CONFIG, config_file(), ABLATIONS),
        code=code("provenance"),
        tables=subpath(input.tables, parent=True),
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias provenance --log {log} --settings {params.settings:q} --manifests {input.manifests:q}"
        " --tables {params.tables:q} --output {params.folder:q}"


rule report:
    input:
        figures=f"{FIGURES}/manifest.json",
        tables=f"{RESULTS}/tables/tables.manifest.json",
        shift=f"{RESULTS}/shift/delta_b.csv",
        records=f"{RESULTS}/records/manifest.json",
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
        settings=slices.report_slice(CONFIG, ABLATIONS),
        code=code("report"),
        data=[
            content(resources.report_path()),
            content(CONFIG.stimuli.groups_file, "stimuli", "groups.tsv"),
            *lens_content(),
        ],
        lenses=[part for lens in lenses_there().items() for part in lens],
        figures=subpath(input.figures, parent=True),
        tables=subpath(input.tables, parent=True),
        shift=subpath(input.shift, parent=True),
        records=subpath(input.records, parent=True),
    shell:
        "python -m refbias report --log {log} --settings {params.settings:q} --tables {params.tables:q}"
        " --shift {params.shift:q} --figures {params.figures:q} --records {params.records:q}"
        " {params.lenses:q} --output {output:q}"
