# Occupational competence; not part of a run: ask for the target `competence`.


rule competence_represent:
    input:
        subject_files,
        reference=reference_direction,
    output:
        multiext(
            f"{COMPETENCE}/{{model}}/{{subject}}/direction", ".json", ".safetensors"
        ),
        scores=f"{COMPETENCE}/{{model}}/{{subject}}/scores.csv",
        random=f"{COMPETENCE}/{{model}}/{{subject}}/random_directions.csv",
        manifest=f"{COMPETENCE}/{{model}}/{{subject}}/manifest.json",
    log:
        f"{RESULTS}/logs/competence/represent/{{model}}/{{subject}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/competence/represent/{{model}}/{{subject}}.tsv"
    wildcard_constraints:
        subject=SUBJECT,
    conda:
        ENVIRONMENT
    threads: torch_threads(CONFIG.compute.device)
    resources:
        gpu=gpus(CONFIG.compute.device),
        mem_mb=8000,
        runtime=60,
    params:
        settings=lambda w: slices.competence_represent_slice(CONFIG, w.model, w.subject),
        code=code("competence_represent"),
        data=competence_content(),
        reference=lambda w: f"{RESULTS}/models/{w.model}",
        ends=subject_options,
        direction=direction_option,
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias competence represent --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} {params.ends:q} {params.direction:q} --output {params.folder:q}"


rule competence_steer:
    input:
        subject_files,
        direction=f"{COMPETENCE}/{{model}}/{{subject}}/direction.json",
    output:
        table=f"{COMPETENCE}/{{model}}/{{subject}}/steering.csv",
        grid=f"{COMPETENCE}/{{model}}/{{subject}}/steering.json",
        mitigation=f"{COMPETENCE}/{{model}}/{{subject}}/mitigation.csv",
        manifest=f"{COMPETENCE}/{{model}}/{{subject}}/steer.manifest.json",
    log:
        f"{RESULTS}/logs/competence/steer/{{model}}/{{subject}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/competence/steer/{{model}}/{{subject}}.tsv"
    wildcard_constraints:
        subject=SUBJECT,
    conda:
        ENVIRONMENT
    threads: torch_threads(CONFIG.compute.device)
    resources:
        gpu=gpus(CONFIG.compute.device),
        mem_mb=8000,
        runtime=240,
    params:
        settings=lambda w: slices.competence_steer_slice(CONFIG, w.model, w.subject),
        code=code("competence_steer"),
        data=[competence_content(), stimuli_content()],
        reference=lambda w: f"{RESULTS}/models/{w.model}",
        ends=subject_options,
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias competence steer --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} {params.ends:q} --output {params.folder:q}"


rule competence_answer:
    input:
        subject_files,
    output:
        table=f"{COMPETENCE}/{{model}}/{{subject}}/behaviour.csv",
        raw=f"{COMPETENCE}/{{model}}/{{subject}}/raw.jsonl",
        manifest=f"{COMPETENCE}/{{model}}/{{subject}}/answer.manifest.json",
    log:
        f"{RESULTS}/logs/competence/answer/{{model}}/{{subject}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/competence/answer/{{model}}/{{subject}}.tsv"
    wildcard_constraints:
        subject=SUBJECT,
    conda:
        ENVIRONMENT
    threads: torch_threads(CONFIG.compute.device)
    resources:
        gpu=gpus(CONFIG.compute.device),
        mem_mb=8000,
        runtime=240,
    params:
        settings=lambda w: slices.competence_answer_slice(CONFIG, w.model, w.subject),
        code=code("competence_answer"),
        data=competence_content(),
        reference=lambda w: f"{RESULTS}/models/{w.model}",
        ends=subject_options,
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias competence answer --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} {params.ends:q} --output {params.folder:q}"


rule competence_hire:
    input:
        subject_files,
        direction=f"{COMPETENCE}/{{model}}/{{subject}}/direction.json",
        steering=steering_file,
    output:
        table=f"{COMPETENCE}/{{model}}/{{subject}}/hiring.csv",
        manifest=f"{COMPETENCE}/{{model}}/{{subject}}/hire.manifest.json",
    log:
        f"{RESULTS}/logs/competence/hire/{{model}}/{{subject}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/competence/hire/{{model}}/{{subject}}.tsv"
    wildcard_constraints:
        subject=SUBJECT,
    conda:
        ENVIRONMENT
    threads: torch_threads(CONFIG.compute.device)
    resources:
        gpu=gpus(CONFIG.compute.device),
        mem_mb=8000,
        runtime=120,
    params:
        settings=lambda w: slices.competence_hire_slice(CONFIG, w.model, w.subject),
        code=code("competence_hire"),
        data=competence_content(),
        reference=lambda w: f"{RESULTS}/models/{w.model}",
        ends=subject_options,
        steering=steering_option,
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias competence hire --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
        " --reference {params.reference:q} {params.ends:q} {params.steering:q} --output {params.folder:q}"


if CONFIG.competence.axis is not None:

    rule competence_axis:
        input:
            f"{RESULTS}/models/{{model}}/manifest.json",
            prompt_sources(CONFIG.competence.axis.benchmark),
            direction=f"{COMPETENCE}/{{model}}/reference/direction.json",
            topics=TOPIC_MAP or [],
            guards=[guard_manifest(guard) for guard in GUARDS],
        output:
            table=f"{COMPETENCE}/{{model}}/reference/axis.csv",
            manifest=f"{COMPETENCE}/{{model}}/reference/axis.manifest.json",
        log:
            f"{RESULTS}/logs/competence/axis/{{model}}.log",
        benchmark:
            f"{RESULTS}/benchmarks/competence/axis/{{model}}.tsv"
        conda:
            ENVIRONMENT
        threads: torch_threads(CONFIG.compute.device)
        resources:
            gpu=gpus(CONFIG.compute.device),
            mem_mb=24000 if GUARDS else 8000,
            runtime=240,
        params:
            settings=lambda w: slices.competence_axis_slice(CONFIG, w.model, TOPIC_MAP),
            code=code("competence_axis"),
            data=[
                competence_content(),
                stimuli_content(),
                prompt_content(),
                scorer_content(),
            ],
            reference=lambda w: f"{RESULTS}/models/{w.model}",
            guards=["--guards", f"{RESULTS}/guards"] if GUARDS else [],
            # what asks for the output is not recorded: where an interpreter lies reruns nothing
            vllm=lambda w, output: guard_interpreter_option(),
            folder=subpath(output.manifest, parent=True),
        shell:
            "python -m refbias competence axis --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
            " --reference {params.reference:q} {params.guards:q} {params.vllm:q} --output {params.folder:q}"


rule competence_analyse:
    input:
        scores=f"{COMPETENCE}/{{model}}/{{subject}}/scores.csv",
        random=f"{COMPETENCE}/{{model}}/{{subject}}/random_directions.csv",
        behaviour=f"{COMPETENCE}/{{model}}/{{subject}}/behaviour.csv",
        hiring=f"{COMPETENCE}/{{model}}/{{subject}}/hiring.csv",
    output:
        effects=f"{COMPETENCE}/{{model}}/{{subject}}/effects.csv",
        occupations=f"{COMPETENCE}/{{model}}/{{subject}}/occupations.csv",
        attributes=f"{COMPETENCE}/{{model}}/{{subject}}/attributes.csv",
        arms=f"{COMPETENCE}/{{model}}/{{subject}}/hiring_arms.csv",
        verdicts=f"{COMPETENCE}/{{model}}/{{subject}}/verdicts.json",
        manifest=f"{COMPETENCE}/{{model}}/{{subject}}/analyse.manifest.json",
    log:
        f"{RESULTS}/logs/competence/analyse/{{model}}/{{subject}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/competence/analyse/{{model}}/{{subject}}.tsv"
    wildcard_constraints:
        subject=SUBJECT,
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        options=slices.competence_analysis_options(CONFIG),
        code=code("competence_analyse"),
        data=competence_content(),
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias competence analyse --log {log} --results {params.folder:q} {params.options:q}"


rule competence_tables:
    input:
        analysed_files(),
        steered_files(),
        axis_files(),
    output:
        f"{COMPETENCE}/tables/manifest.json",
    log:
        f"{RESULTS}/logs/competence/tables.log",
    benchmark:
        f"{RESULTS}/benchmarks/competence/tables.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        code=code("competence_pictures"),
        results=subpath(output[0], ancestor=2),
        stand_ins=stand_in_option(MODELS),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias competence tables --log {log} --results {params.results:q} {params.stand_ins:q}"
        " --output {params.folder:q}"


rule competence_figures:
    input:
        analysed_files(),
        steered_files(),
        axis_files(),
    output:
        f"{COMPETENCE}/figures/manifest.json",
    log:
        f"{RESULTS}/logs/competence/figures.log",
    benchmark:
        f"{RESULTS}/benchmarks/competence/figures.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        code=code("competence_pictures"),
        results=subpath(output[0], ancestor=2),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias competence figures --log {log} --results {params.results:q} --output {params.folder:q}"


rule competence_report:
    input:
        f"{COMPETENCE}/tables/manifest.json",
        figures=f"{COMPETENCE}/figures/manifest.json",
    output:
        f"{COMPETENCE}/report.html",
    log:
        f"{RESULTS}/logs/competence/report.log",
    benchmark:
        f"{RESULTS}/benchmarks/competence/report.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        code=code("competence_pictures"),
        data=content(resources.report_path()),
        results=subpath(output[0], parent=True),
        figures=subpath(input.figures, parent=True),
    shell:
        "python -m refbias competence report --log {log} --results {params.results:q} --figures {params.figures:q}"
        " --output {output:q}"


rule competence:
    input:
        f"{COMPETENCE}/report.html",
    localrule: True
