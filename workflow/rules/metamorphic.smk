# Metamorphic tests of bias; not part of a run: ask for the target `metamorphic`.


rule metamorphic_sample:
    output:
        questions=f"{META}/questions/questions.jsonl",
        manifest=f"{META}/questions/manifest.json",
    log:
        f"{RESULTS}/logs/metamorphic/sample.log",
    benchmark:
        f"{RESULTS}/benchmarks/metamorphic/sample.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        settings=slices.metamorphic_sample_slice(CONFIG),
        code=code("metamorphic_sample"),
        data=metamorphic_content(),
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias metamorphic sample --log {log} --settings {params.settings:q} --output {params.folder:q}"


# The merges of the spectrum are gone once they were generated from, and made anew they would make the run generate
# again: the lens has its own, one after the other.
rule metamorphic_merge:
    input:
        unharmful=lambda w: endpoint_done(w.model, "full", "unharmful"),
        harmful=lambda w: endpoint_done(w.model, "full", "harmful"),
        earlier=earlier_merge_answered,
    output:
        manifest=temp(f"{META}/merges/{{model}}/{{checkpoint}}/manifest.json"),
        weights=temp(f"{META}/merges/{{model}}/{{checkpoint}}/model.safetensors"),
    log:
        f"{RESULTS}/logs/metamorphic/merge/{{model}}/{{checkpoint}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/metamorphic/merge/{{model}}/{{checkpoint}}.tsv"
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
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias merge --log {log} --settings {params.settings:q}"
        " --unharmful {params.unharmful:q} --harmful {params.harmful:q} --output {params.folder:q}"


rule metamorphic_ask:
    input:
        answering_files,
        questions_of,
        reference=f"{RESULTS}/models/{{model}}/manifest.json",
    output:
        raw=f"{META}/answers/{{model}}/{{subject}}/{{asked}}/raw.jsonl",
        manifest=f"{META}/answers/{{model}}/{{subject}}/{{asked}}/asked.json",
    log:
        f"{RESULTS}/logs/metamorphic/ask/{{model}}/{{subject}}/{{asked}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/metamorphic/ask/{{model}}/{{subject}}/{{asked}}.tsv"
    wildcard_constraints:
        asked="(plain|few_shot)(/neutral|/open)?",
    conda:
        GENERATION_ENVIRONMENT
    threads: torch_threads(CONFIG.compute.device)
    resources:
        gpu=CONFIG.generation.gpus() * gpus(CONFIG.compute.device),
        mem_mb=8000,
        runtime=240,
    params:
        settings=lambda w: slices.metamorphic_ask_slice(CONFIG, w.model, w.asked),
        code=code("metamorphic_ask"),
        data=asked_content,
        # what asks for the output is not recorded: where an interpreter lies reruns nothing
        interpreter=lambda w, output: interpreter_option(),
        questions=questions_option,
        reference=subpath(input.reference, parent=True),
        checkpoint=answering_option,
        folder=subpath(output.manifest, parent=True),
        work=lambda w: f"{RESULTS}/work/metamorphic/{w.model}/{w.subject}/{w.asked}",
    shell:
        "python -m refbias metamorphic ask {params.interpreter:q} --log {log} --gpu {resources.gpu}"
        " --settings {params.settings:q} {params.questions:q} --reference {params.reference:q} {params.checkpoint:q}"
        " --name {wildcards.model}-{wildcards.subject} --output {params.folder:q} --work {params.work:q}"


if LENS.reading == "forced_choice":

    # log-probabilities are read by transformers, whatever generates
    use rule metamorphic_ask as metamorphic_choose with:
        wildcard_constraints:
            asked="plain|few_shot",
        conda:
            ENVIRONMENT
        resources:
            gpu=gpus(CONFIG.compute.device),
            mem_mb=8000,
            runtime=240,
        params:
            settings=lambda w: slices.metamorphic_ask_slice(CONFIG, w.model, w.asked),
            code=code("metamorphic_ask"),
            data=asked_content,
            interpreter=[],
            questions=questions_option,
            reference=subpath(input.reference, parent=True),
            checkpoint=answering_option,
            folder=subpath(output.manifest, parent=True),
            work=lambda w: f"{RESULTS}/work/metamorphic/{w.model}/{w.subject}/{w.asked}",

    ruleorder: metamorphic_choose > metamorphic_ask


if INTERFACES:

    # where the network is: on a cluster no compute node asks a service
    rule metamorphic_ask_interface:
        input:
            questions=f"{META}/questions/questions.jsonl",
        output:
            raw=f"{META}/answers/{{interface}}/reference/{{asked}}/raw.jsonl",
            manifest=f"{META}/answers/{{interface}}/reference/{{asked}}/asked.json",
        log:
            f"{RESULTS}/logs/metamorphic/ask/{{interface}}/reference/{{asked}}.log",
        benchmark:
            f"{RESULTS}/benchmarks/metamorphic/ask/{{interface}}/reference/{{asked}}.tsv"
        wildcard_constraints:
            interface="|".join(map(re.escape, INTERFACES)),
            asked="plain|few_shot",
        localrule: True
        conda:
            ENVIRONMENT
        resources:
            mem_mb=2000,
            runtime=720,
        params:
            settings=lambda w: slices.metamorphic_ask_slice(
                CONFIG, w.interface, w.asked
            ),
            code=code("metamorphic_ask"),
            data=asked_content,
            # patience and budget are not recorded: a larger budget asks for what is left, not again
            patience=lambda w, output: patience_option(
                "--endpoint", LENS.endpoints[w.interface]
            ),
            folder=subpath(output.manifest, parent=True),
            work=lambda w: f"{RESULTS}/work/metamorphic/{w.interface}/{w.asked}",
        shell:
            "python -m refbias metamorphic ask --log {log} --settings {params.settings:q} {params.patience:q}"
            " --questions {input.questions:q} --name {wildcards.interface} --output {params.folder:q}"
            " --work {params.work:q}"


rule metamorphic_evaluate:
    input:
        questions=f"{META}/questions/questions.jsonl",
        raw=f"{META}/answers/{{tested}}/{{subject}}/{{asked}}/raw.jsonl",
        asked=f"{META}/answers/{{tested}}/{{subject}}/{{asked}}/asked.json",
    output:
        answers=f"{META}/answers/{{tested}}/{{subject}}/{{asked}}/answers.jsonl",
        summary=f"{META}/answers/{{tested}}/{{subject}}/{{asked}}/summary.json",
        manifest=f"{META}/answers/{{tested}}/{{subject}}/{{asked}}/manifest.json",
    log:
        f"{RESULTS}/logs/metamorphic/evaluate/{{tested}}/{{subject}}/{{asked}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/metamorphic/evaluate/{{tested}}/{{subject}}/{{asked}}.tsv"
    wildcard_constraints:
        tested="|".join(map(re.escape, [*TESTED, *INTERFACES])) or "none",
        asked="(plain|few_shot)(/open)?",
    conda:
        ENVIRONMENT
    threads: torch_threads(CONFIG.compute.device) if LENS.judge.directory else 1
    resources:
        **({"gpu": gpus(CONFIG.compute.device)} if LENS.judge.directory else {}),
        mem_mb=24000 if LENS.judge.directory else 2000,
        runtime=240,
    params:
        settings=lambda w: slices.metamorphic_label_slice(CONFIG, w.tested, w.asked),
        code=code("metamorphic_evaluate"),
        data=[*metamorphic_content(), *judge_content()],
        patience=lambda w, output: patience_option(
            "--judge-endpoint", LENS.judge.endpoint
        ),
        # not recorded either
        vllm=lambda w, output: judge_interpreter_option(),
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias metamorphic evaluate --log {log}"
        + (" --gpu {resources.gpu}" if LENS.judge.directory else "")
        + " --settings {params.settings:q} {params.patience:q} {params.vllm:q} --questions {input.questions:q}"
        " --answers {params.folder:q}"


if MITIGATED:

    rule mitigation_set:
        input:
            questions=f"{META}/questions/questions.jsonl",
            answers=f"{META}/answers/{{model}}/reference/plain/answers.jsonl",
        output:
            rows=f"{META}/mitigation/{{model}}/training_set/train.jsonl",
            held_out=f"{META}/mitigation/{{model}}/training_set/held_out.json",
            manifest=f"{META}/mitigation/{{model}}/training_set/manifest.json",
        log:
            f"{RESULTS}/logs/metamorphic/mitigation_set/{{model}}.log",
        benchmark:
            f"{RESULTS}/benchmarks/metamorphic/mitigation_set/{{model}}.tsv"
        conda:
            ENVIRONMENT
        resources:
            mem_mb=1000,
            runtime=20,
        params:
            code=code("metamorphic_mitigation"),
            data=[*metamorphic_content(), content(None, "metamorphic", "neutral.tsv")],
            hold_out=LENS.mitigation.hold_out or "none",
            # trained in the form in which it is asked again
            choice=(
                ["--choice", LENS.forced_choice.options]
                if LENS.reading == "forced_choice"
                else []
            ),
            material=material_options(),
            seed=CONFIG.seed,
            folder=subpath(output.manifest, parent=True),
        shell:
            "python -m refbias metamorphic mitigation-set --log {log} --questions {input.questions:q}"
            " --answers {input.answers:q} --hold-out {params.hold_out} {params.choice:q} {params.material:q}"
            " --seed {params.seed}"
            " --output {params.folder:q}"

    rule mitigate:
        input:
            reference=f"{RESULTS}/models/{{model}}/manifest.json",
            rows=f"{META}/mitigation/{{model}}/training_set/train.jsonl",
        output:
            manifest=f"{META}/mitigation/{{model}}/checkpoint/manifest.json",
            loss=f"{META}/mitigation/{{model}}/checkpoint/loss.csv",
        log:
            f"{RESULTS}/logs/metamorphic/mitigate/{{model}}.log",
        benchmark:
            f"{RESULTS}/benchmarks/metamorphic/mitigate/{{model}}.tsv"
        conda:
            ENVIRONMENT
        threads: ALL_CORES
        resources:
            gpu=(
                training_gpus(LENS.mitigation.regime)
                if LENS.mitigation.regime in REGIMES
                else gpus("auto")
            ),
            mem_mb=12000,
            runtime=720,
        params:
            settings=lambda w, input: slices.mitigate_slice(CONFIG, w.model, input.rows),
            code=code("finetune"),
            reference=subpath(input.reference, parent=True),
            folder=subpath(output.manifest, parent=True),
            # outside the declared outputs: Snakemake deletes those before a retry
            work=lambda w: f"{RESULTS}/work/metamorphic/{w.model}/mitigate",
        shell:
            "python -m refbias finetune --log {log} --gpu {resources.gpu} --settings {params.settings:q}"
            " --reference {params.reference:q} --output {params.folder:q} --work {params.work:q}"


rule metamorphic_tables:
    input:
        lens_answers(),
        shift=lens_shift(),
    output:
        tables=expand(
            f"{META}/tables/{{name}}.{{suffix}}",
            name=metamorphic_names.TABLES,
            suffix=TABLE_SUFFIXES,
        ),
        manifest=f"{META}/tables/manifest.json",
    log:
        f"{RESULTS}/logs/metamorphic/tables.log",
    benchmark:
        f"{RESULTS}/benchmarks/metamorphic/tables.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        code=code("metamorphic_pictures"),
        data=[
            *metamorphic_content(),
            content(None, "metamorphic", "neutral.tsv"),
            content(CONFIG.stimuli.groups_file, "stimuli", "groups.tsv"),
        ],
        results=subpath(output.manifest, ancestor=2),
        shift=lambda w, input: ["--shift", input.shift[0]] if input.shift else [],
        material=material_options(),
        targets=(
            ["--target-groups", CONFIG.stimuli.groups_file]
            if CONFIG.stimuli.groups_file
            else []
        ),
        method="rr" if "rr" in CONFIG.shift.methods else CONFIG.shift.methods[0],
        stand_ins=stand_in_option(TESTED),
        resamples=LENS.n_resamples,
        seed=CONFIG.seed,
        folder=subpath(output.manifest, parent=True),
    shell:
        "python -m refbias metamorphic tables --log {log} --results {params.results:q} {params.shift:q}"
        " {params.material:q} {params.targets:q} {params.stand_ins:q} --method {params.method} --n-resamples {params.resamples}"
        " --seed {params.seed} --output {params.folder:q}"


rule metamorphic_figures:
    input:
        tables=f"{META}/tables/manifest.json",
    output:
        f"{META}/figures/manifest.json",
    log:
        f"{RESULTS}/logs/metamorphic/figures.log",
    benchmark:
        f"{RESULTS}/benchmarks/metamorphic/figures.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        code=code("metamorphic_pictures"),
        tables=subpath(input.tables, parent=True),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m refbias metamorphic figures --log {log} --tables {params.tables:q} --output {params.folder:q}"


rule metamorphic_report:
    input:
        f"{META}/tables/manifest.json",
        f"{META}/figures/manifest.json",
    output:
        f"{META}/report.html",
    log:
        f"{RESULTS}/logs/metamorphic/report.log",
    benchmark:
        f"{RESULTS}/benchmarks/metamorphic/report.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        code=code("metamorphic_pictures"),
        data=content(resources.report_path()),
        results=subpath(output[0], parent=True),
    shell:
        "python -m refbias metamorphic report --log {log} --results {params.results:q} --output {output:q}"


rule metamorphic:
    input:
        f"{META}/report.html",
    localrule: True
