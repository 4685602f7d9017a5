# Look-ups of every rule: hashes of the code and of the files that a job's parameters hold.

from refbias import artifacts, codehash, resources


def code(stage):
    """Hash of the code that a stage uses: an edit elsewhere, or of a comment, reruns nothing."""
    return codehash.code_hash(f"refbias.cli.{stage}")


def content(user_file, *shipped):
    """Hash of a user's file or folder, or of a shipped one where none is named.

    Data enter as a hash, not as an input file: a fresh checkout's newer time stamps must not
    rerun results that were copied into it.
    """
    path = Path(user_file) if user_file else resources.data_path(*shipped)
    return artifacts.sha256_tree(path)[:16] if path.exists() else "absent"


def stimuli_content():
    chosen = CONFIG.stimuli
    files = [
        chosen.groups_file,
        chosen.targets_file,
        chosen.attributes_file,
        chosen.anchors_file,
        chosen.control_file,
    ]
    names = [
        "groups.tsv",
        "targets.tsv",
        "attributes.tsv",
        "anchors.tsv",
        "control.tsv",
    ]
    return [content(file, "stimuli", name) for file, name in zip(files, names)]
