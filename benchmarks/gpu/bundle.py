"""One folder with what the campaign needs on a machine without network: source, wheels that such a machine lacks, corpora."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

from benchmarks.gpu.campaign import COMMIT_FILE, ROOT
from reluformer.training.run.records import git_state, write_json

TAKEN = ("benchmarks/", "tests/", "pyproject.toml", "constraints.txt")
LEFT_OUT, RESULTS = "benchmarks/results/", "benchmarks/results/gpu/"
WHEELS = ("datasets", "dill", "multiprocess", "jsonargparse", "docstring_parser", "typeshed_client")
WHEELS += ("sacremoses", "num2words")
DOWNLOAD = ("-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", "3.12")
MOST_MIB, CORPORA = 60, ("multi30k", "tatoeba")
RUN = '#!/bin/sh\ncd "$(dirname "$0")" && PYTHONPATH=site exec python3 -m benchmarks.gpu "$@"\n'


def write_bundle(folder: Path, data: Path, with_wheels: bool) -> int:
    """Writes the folder anew, and prints what is in it and how large it is; the exit status is 1 if that is too much."""
    site = folder / "site"
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", *TAKEN], capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file() and (not name.startswith(LEFT_OUT) or name.startswith(RESULTS)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    # the files behind the links of the package, which a bundle may lose on its way
    built = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "reluformer", site / "reluformer", ignore=built)
    package = distribution("reluformer")  # whose version `reluformer train` asks for
    metadata = site / f"reluformer-{package.version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(package.read_text("METADATA") or "", encoding="utf-8")
    write_json(folder / COMMIT_FILE.name, {f"git_{key}": value for key, value in git_state().items()})
    (folder / "run").write_text(RUN, encoding="utf-8")
    for name in CORPORA:
        if (data / name).is_dir():
            shutil.copytree(data / name, folder / "data" / name)
    if with_wheels:
        downloads = folder / "wheels"
        constrained = ["-c", ROOT / "constraints.txt", "-d", downloads]
        subprocess.run([sys.executable, *DOWNLOAD, *constrained, *WHEELS], check=True)
        for wheel in downloads.iterdir():
            ZipFile(wheel).extractall(site)
        shutil.rmtree(downloads)
    sizes = {path.name: _mib(path) for path in sorted(folder.iterdir())}
    print(*(f"{name}: {size:.1f} MiB" for name, size in sizes.items()), sep="\n")
    print(f"bundle: {sum(sizes.values()):.1f} of {MOST_MIB} MiB: sh {folder}/run STAGE --minutes N --output FOLDER")
    return int(sum(sizes.values()) > MOST_MIB)


def _mib(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 2**20
