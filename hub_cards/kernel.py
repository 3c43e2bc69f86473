"""A folder that can be pushed to the Hub as a kernel for the library `kernels`, with `relu_attention` in it.

Its layout is that of a kernel of Python code alone: `build/torch-<backend>/` is a package with `metadata.json` beside its
modules. `kernels` imports it under the name `id` of the metadata, and the operators are registered in that namespace
(`fused.operator.NAMESPACE`), so that builds, and the package reluformer, do not take each other's operators away.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id

from reluformer.configuration.errors import UserError
from reluformer.configuration.whole_files import holds_one, require_own, whole_folder, write_whole
from reluformer.hub_cards.kernel_sources import ENTRY, kernel_sources
from reluformer.modeling_reluformer.attention_reluformer import POINTWISE
from reluformer.modeling_reluformer.fused.triton_launch import MAX_HEAD_DIM

FUNCTION = "relu_attention"
DEFAULT_REPO_ID = "your-name/relu-attention"
# The major version, which the branch on the Hub is named after. 0 means, by the convention of `kernels`: not for production yet.
VERSION = 0
# What the Triton kernels need of a CUDA device, and what the tests compile them for.
CAPABILITY, COMPILED_FOR = "8.0", ("8.0", "9.0")
# Backend → architectures in the notation of `kernels`, where +PTX includes all later ones.
BACKENDS = {"cpu": None, "cuda": [f"{CAPABILITY}+PTX"]}
TEMPLATE = Path(__file__).with_name("kernel_template.md")

_INIT = '''"""Point-wise attention, ReLU instead of softmax, made from the package reluformer {version}."""

from .{module} import {function}

__version__ = "{version}"

__all__ = ["{function}"]
'''
# Found by path, not by import: this file is what old releases of `kernels` import, under a name of their own.
_OLD_PLACE = '''"""For old releases of `kernels`, which look for the package here: the names of the folder above."""

import importlib.util
import sys
from pathlib import Path

_NAME = "{id}"

if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_NAME, Path(__file__).absolute().parent.parent / "__init__.py")
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    try:
        _spec.loader.exec_module(sys.modules[_NAME])
    except BaseException:
        del sys.modules[_NAME]
        raise

{function} = sys.modules[_NAME].{function}
__version__ = sys.modules[_NAME].__version__

__all__ = ["{function}"]
'''
_BUILD_TOML = """# For `kernel-builder upload`. Nothing is left to build: `build` holds every variant.
[general]
name = "{name}"
version = {version}
edition = 5
license = "{license}"
backends = [{backends}]

[general.hub]
repo-id = "{repo_id}"

[torch-noarch]
cuda_capabilities = [{capabilities}]
"""


class KernelFolder(NamedTuple):
    """What `write_kernel` has written; `build` tells one content of the modules from another."""

    path: Path
    repo_id: str
    build: str
    variants: tuple[str, ...]


def write_kernel(folder: str | Path, *, repo_id: str = DEFAULT_REPO_ID, overwrite: bool = False) -> KernelFolder:
    """Writes the kernel, its metadata, card, licence and build.toml. The same package always writes the same bytes.

    Args:
        folder: appears whole or not at all.
        repo_id: where the kernel will be on the Hub, owner/name. The name becomes the kernel's: lower-case letters, digits
            and dashes.
        overwrite: replace a kernel that is in `folder` already.

    Raises:
        UserError: a repo id that is none, or a folder that is in use, or holds other files than a kernel's.
    """
    folder = Path(folder)
    name = _kernel_name(repo_id)
    if holds_one(folder, "kernel", ["build.toml", "build"], overwrite=overwrite):
        require_own(folder, _foreign_files(folder))
    package = distribution("reluformer")
    modules = kernel_sources()
    modules["__init__.py"] = _INIT.format(version=package.version, module=ENTRY, function=FUNCTION)
    build = hashlib.sha256(json.dumps(modules, sort_keys=True).encode()).hexdigest()[:10]
    written = KernelFolder(folder, repo_id, build, tuple(f"torch-{backend}" for backend in BACKENDS))
    files = {"build.toml": _build_toml(name, repo_id), "LICENSE": _license_text()}
    # kernel-builder takes the card from the second place, `hf upload` from the first
    files["README.md"] = files["build/CARD.md"] = _card(name, written)
    for backend in BACKENDS:
        for path, text in _variant(name, backend, build, modules).items():
            files[f"build/torch-{backend}/{path}"] = text
    with whole_folder(folder) as inside:
        for path, text in files.items():
            write_whole(inside / path, text)
    return written


def _kernel_name(repo_id: str) -> str:
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(f"{repo_id!r}: is no repo id of the Hub: {error}") from error
    owner, _, name = repo_id.rpartition("/")
    if not owner or not re.fullmatch(r"[a-z][-a-z0-9]*[a-z0-9]", name):
        raise UserError(
            f"{repo_id!r}: cannot be the repo id of a kernel; give owner/name, the name in lower-case letters, digits and "
            f"dashes, such as {DEFAULT_REPO_ID}"
        )
    return name


def _foreign_files(folder: Path) -> list[str]:
    """What no version of [`write_kernel`] has put into a folder; the metadata of each variant name its modules."""
    own = {"build.toml", "LICENSE", "README.md", "build/CARD.md"}
    for path in folder.glob("build/torch-*/metadata.json"):
        modules = json.loads(path.read_text(encoding="utf-8")).get("digest", {}).get("files", {})
        own |= {f"build/{path.parent.name}/{name}" for name in ("metadata.json", *modules)}
    files = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    names = [path.relative_to(folder).as_posix() for path in files if path.parent.name != "__pycache__"]
    return [name for name in names if name not in own]


def _variant(name: str, backend: str, build: str, modules: dict[str, str]) -> dict[str, str]:
    """Path below the variant's folder → content."""
    module_name = name.replace("-", "_")
    identifier = f"_{module_name}_{backend}_{build}"
    files = {**modules, f"{module_name}/__init__.py": _OLD_PLACE.format(id=identifier, function=FUNCTION)}
    archs = BACKENDS[backend]
    metadata = {
        "name": name,
        "id": identifier,
        "version": VERSION,
        "license": _license(),
        "python-depends": [],
        "backend": {"type": backend} | ({} if archs is None else {"archs": archs}),
        "digest": {"algorithm": "sha256", "files": {path: _digest(text) for path, text in sorted(files.items())}},
    }
    return {**files, "metadata.json": json.dumps(metadata, indent=2) + "\n"}


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _build_toml(name: str, repo_id: str) -> str:
    def quoted(values: list[str]) -> str:
        return ", ".join(f'"{value}"' for value in values)

    return _BUILD_TOML.format(
        name=name,
        version=VERSION,
        license=_license(),
        backends=quoted(list(BACKENDS)),
        repo_id=repo_id,
        capabilities=quoted(BACKENDS["cuda"]),
    )


def _card(name: str, written: KernelFolder) -> str:
    package = distribution("reluformer")
    card = ModelCard.from_template(
        ModelCardData(
            library_name="kernels", license=_license().lower(), tags=["kernels", "attention", "arxiv:2302.06461"]
        ),
        template_path=str(TEMPLATE),
        name=name,
        repo_id=written.repo_id,
        version=VERSION,
        build=written.build,
        variants=written.variants,
        activations=POINTWISE,
        max_head_dim=MAX_HEAD_DIM,
        capability=CAPABILITY,
        compiled_for=COMPILED_FOR,
        python=f"Python {package.metadata['Requires-Python']}",
        torch=next(line for line in package.requires if line.startswith("torch>")),
        package_version=package.version,
    )
    return str(card).rstrip() + "\n"


def _license() -> str:
    return distribution("reluformer").metadata["License-Expression"]


def _license_text() -> str:
    """The licence as it was installed, beside the metadata of the package."""
    for file in distribution("reluformer").files or ():
        if file.name == "LICENSE":
            return file.read_text(encoding="utf-8")
    raise UserError(
        "the installed package reluformer lacks its file LICENSE, which the kernel must carry; install it again"
    )
