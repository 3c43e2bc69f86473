"""The modules that `relu_attention` needs. They import each other, torch, Triton and the standard library, and nothing else.

They are read from this package, so that there is no second copy of the kernels to keep.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from reluformer import modeling_reluformer

ENTRY = "fused.attention"
ALLOWED_PACKAGES = frozenset({"torch", "triton"}) | sys.stdlib_module_names


def kernel_sources() -> dict[str, str]:
    """Path of each file that `relu_attention` needs, below `modeling_reluformer/` → its source, character by character.

    Raises:
        ValueError: a module imports a package that a kernel may not import.
    """
    sources: dict[str, str] = {}
    unread = {ENTRY}
    while unread:
        sources |= {name: _read(name) for name in unread}
        unread = {module for name in unread for module in _relative_imports(name, sources[name])} - sources.keys()
    for name, source in sources.items():
        if foreign := imported_packages(source) - ALLOWED_PACKAGES:
            raise ValueError(
                f"{name}: the kernel needs this module, which imports {', '.join(sorted(foreign))}; "
                "a Hub kernel may import torch, triton and the standard library only."
            )
    # `fused/__init__.py` of the package adds the compiled loop, which a kernel does not carry
    packages = {f"{name.rpartition('.')[0].replace('.', '/')}/__init__.py": "" for name in sources if "." in name}
    files = {f"{name.replace('.', '/')}.py": source for name, source in sources.items()}
    return dict(sorted((files | packages).items()))


def imported_packages(source: str) -> set[str]:
    """Top-level names of all absolute imports of a source, inside functions too."""
    packages = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            packages.add(node.module.partition(".")[0])
    return packages


def _read(name: str) -> str:
    return (Path(modeling_reluformer.__file__).parent / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")


def _relative_imports(name: str, source: str) -> set[str]:
    """The module of every `from .module import names`, the form in which this package imports itself, as a dotted name."""
    places = name.split(".")
    return {
        ".".join([*places[: -node.level], node.module])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.level and node.module
    }
