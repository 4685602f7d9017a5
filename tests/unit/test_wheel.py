"""The package as users install it: a wheel that holds its data and works from any folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.mark.slow
def test_an_installed_wheel_finds_its_sentences_from_any_folder(root: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(root)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("refbias-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    # -P: the folder that the command starts in is not searched
    command = [sys.executable, "-P", "-m", "refbias", "stimuli", "validate", "--strict"]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line in ("anchors: 1000", "attributes syn_v3: 200", "targets passive: 50", "word anchors: 1000"):
        assert line in done.stdout.splitlines(), done.stdout
    code = "import refbias; from refbias import resources; print(refbias.__file__); resources.report_path('report.rst')"
    where = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=elsewhere, env=environment, capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith(str(tmp_path / "site"))
