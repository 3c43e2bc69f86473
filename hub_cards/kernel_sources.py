"""The modules that `relu_attention` needs, as sources that import each other, torch, Triton and the standard library alone.

They are read from this package, so that there is no second copy of the kernels to keep. A Hub kernel may import no other
library: a module that does is cut down to the definitions that the others take from it.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import reluformer

ENTRY_MODULE, ENTRY_FUNCTION = "attention_fused", "relu_attention"
ALLOWED_PACKAGES = frozenset({"torch", "triton"}) | sys.stdlib_module_names


def kernel_sources() -> dict[str, str]:
    """Name of each module of this package that `relu_attention` needs → its source.

    A module that imports allowed packages only is returned as it is, character by character.

    Raises:
        ValueError: a definition that is needed uses a package that a kernel may not import.
    """
    sources, wanted = {}, {ENTRY_MODULE: {ENTRY_FUNCTION}}
    while unread := wanted.keys() - sources.keys():
        for name in unread:
            sources[name] = _read(name)
            for module, names in _relative_imports(sources[name]).items():
                wanted.setdefault(module, set()).update(names)
    for name, source in sources.items():
        if imported_packages(source) <= ALLOWED_PACKAGES:
            continue
        sources[name] = _cut(name, source, wanted[name])
        if foreign := imported_packages(sources[name]) - ALLOWED_PACKAGES:
            raise ValueError(
                f"{name}: what the kernel takes from it ({', '.join(sorted(wanted[name]))}) imports "
                f"{', '.join(sorted(foreign))}; a Hub kernel may import torch, triton and the standard library only."
            )
    return dict(sorted(sources.items()))


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
    return (Path(reluformer.__file__).parent / f"{name}.py").read_text(encoding="utf-8")


def _relative_imports(source: str) -> dict[str, set[str]]:
    """Module → names, of every `from .module import names`, the form that this package imports itself in."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    return found


def _cut(name: str, source: str, wanted: set[str]) -> str:
    """The definitions of `wanted`, with the imports and definitions of the module that they use in turn."""
    body, lines = ast.parse(source).body, source.splitlines()
    kept = {
        index for index, node in enumerate(body) if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    }
    needed = set(wanted)
    while more := {index for index, node in enumerate(body) if index not in kept and _bound(node) & needed}:
        kept |= more
        needed |= {part.id for index in more for part in ast.walk(body[index]) if isinstance(part, ast.Name)}
    imports, definitions = [], []
    for index in sorted(kept):
        first = min([body[index].lineno, *(node.lineno for node in getattr(body[index], "decorator_list", []))])
        text = "\n".join(lines[first - 1 : body[index].end_lineno])
        (imports if isinstance(body[index], ast.Import | ast.ImportFrom) else definitions).append(text)
    docstring = f'"""What the kernel takes from `{name}` of the package reluformer, unchanged."""'
    # the first import is that of annotations from __future__, which every module here has
    return "\n\n".join([docstring, imports[0], "\n".join(imports[1:]), *definitions]) + "\n"


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement of a module gives a value."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    aliases = (part for part in ast.walk(node) if isinstance(part, ast.alias))
    return names | {alias.asname or alias.name.partition(".")[0] for alias in aliases}
