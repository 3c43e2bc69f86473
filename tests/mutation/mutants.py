"""Small faults planted in a source file, one at a time: a factor left out, a bound moved by one, a call left out.

cosmic-ray and mutmut make no mutant that leaves out a factor, a call or a statement, and these are the faults that mathematics
invites. No string is changed, nor anything within annotations, decorators, messages of errors and lines of the log.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

# What takes the place of an operator besides leaving out one side of it.
_OTHER_OPERATOR = {
    **{ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*")},
    **{ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">=")},
    **{ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not")},
    **{ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in")},
}
_TELLS = {"warn", "warning", "warning_once", "info", "debug", "error", "print"}


@dataclass(frozen=True)
class Mutant:
    """One fault. `before` and `after` are the lines that differ, and `scope` the function or class around them: together with
    the file they name the mutant, also after lines above it have moved."""

    file: str
    line: int
    scope: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.file, self.scope, self.before, self.after

    def rank(self, seed: int) -> bytes:
        """A place in line that depends on nothing but the seed and this mutant: editing one function draws no other sample."""
        return hashlib.sha256(repr((seed, self.key)).encode()).digest()


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a file that compile, in the order of the file, each text once."""
    tree = ast.parse(source)
    modules = {(a.asname or a.name).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    modules |= {
        a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names if a.name.islower()
    }
    lines = source.encode().splitlines(keepends=True)
    found: dict[str, Mutant] = {}
    for scope, node in _mutable(tree, ""):
        for start, end, text in _Replacements(lines, modules).of(node):
            mutant = _replace(file, scope, lines, start, end, text)
            if mutant is not None and mutant.source != source:
                found.setdefault(mutant.source, mutant)
    return list(found.values())


Position = tuple[int, int]  # line from 1, column in bytes, as `ast` counts


def _replace(file: str, scope: str, lines: list[bytes], start: Position, end: Position, text: str) -> Mutant | None:
    first, last = start[0] - 1, end[0] - 1
    changed = lines[first][: start[1]] + text.encode() + lines[last][end[1] :]
    source = b"".join([*lines[:first], changed, *lines[last + 1 :]]).decode()
    try:
        compile(source, file, "exec")
    except SyntaxError:
        return None
    before = b"".join(lines[first : last + 1]).decode()
    return Mutant(file, start[0], scope, " ".join(before.split()), " ".join(changed.decode().split()), source)


def _mutable(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node that may be changed, with the name of the function or class around it."""
    yield scope, node
    if isinstance(node, (ast.Raise, ast.JoinedStr)) or _tells(node):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        scope = f"{scope}.{node.name}".lstrip(".")
    left_out = ("annotation", "returns", "decorator_list", "bases", "msg")
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name not in left_out and isinstance(child, ast.AST):
                yield from _mutable(child, scope)


def _tells(node: ast.AST) -> bool:
    """Whether a call warns, logs or prints: its words are not changed."""
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", getattr(node.func, "id", "")) in _TELLS


class _Replacements:
    """(start, end, text) of everything that can take the place of a node."""

    def __init__(self, lines: list[bytes], modules: set[str]):
        self.lines, self.modules = lines, modules

    def of(self, node: ast.AST) -> Iterator[tuple[Position, Position, str]]:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        for change in () if method is None else method(node):
            yield change if isinstance(change, tuple) else (_start(node), _end(node), change)

    def _between(self, start: Position, end: Position) -> str:
        part = self.lines[start[0] - 1 : end[0]]
        part[-1] = part[-1][: end[1]]
        part[0] = part[0][start[1] :]
        return b"".join(part).decode()

    def _text(self, node: ast.AST) -> str:
        return f"({self._between(_start(node), _end(node))})"

    def _other_operator(
        self, left: ast.AST, operator: ast.AST, right: ast.AST
    ) -> Iterator[tuple[Position, Position, str]]:
        if type(operator) in _OTHER_OPERATOR:
            old, new = _OTHER_OPERATOR[type(operator)]
            between = self._between(_end(left), _start(right))
            changed = re.sub(re.escape(old).replace(r"\ ", r"\s+"), new, between, count=1)
            yield _end(left), _start(right), changed

    def _binop(self, node: ast.BinOp):
        yield from (self._text(node.left), self._text(node.right))
        yield from self._other_operator(node.left, node.op, node.right)

    def _compare(self, node: ast.Compare):
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            yield from self._other_operator(left, operator, right)

    def _boolop(self, node: ast.BoolOp):
        word = " and " if isinstance(node.op, ast.And) else " or "
        for left_out in node.values:
            yield f"({word.join(self._text(value) for value in node.values if value is not left_out)})"

    def _unaryop(self, node: ast.UnaryOp):
        yield self._text(node.operand)

    def _constant(self, node: ast.Constant):
        if isinstance(node.value, bool):
            yield str(not node.value)
        elif isinstance(node.value, (int, float)):
            yield repr(node.value + 1)

    def _ifexp(self, node: ast.IfExp):
        yield from (self._text(node.body), self._text(node.orelse))

    def _if(self, node: ast.If):
        for value in ("True", "False"):
            yield _start(node.test), _end(node.test), value

    def _while(self, node: ast.While):
        yield _start(node.test), _end(node.test), "False"

    def _for(self, node: ast.For):
        yield _start(node.iter), _end(node.iter), "()"

    def _comprehension(self, node: ast.comprehension):
        for test in node.ifs:
            yield _start(test), _end(test), "True"

    def _slice(self, node: ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield _start(bound), _end(bound), ""

    def _call(self, node: ast.Call):
        """The call left out: x.f(y) → x and f(x, y) → x, and each argument that has a name."""
        if _tells(node):
            return
        function = node.func
        owner = function.value if isinstance(function, ast.Attribute) else None
        if owner is not None and not (isinstance(owner, ast.Name) and owner.id in {*self.modules, "self", "cls"}):
            yield self._text(owner)
        elif node.args and not isinstance(node.args[0], (ast.Starred, ast.GeneratorExp)):
            yield self._text(node.args[0])
        arguments = sorted([*node.args, *node.keywords], key=_start)
        for before, argument in zip([function, *arguments], arguments, strict=False):
            if isinstance(argument, ast.keyword) and argument.arg is not None:
                if before is not function:
                    yield _end(before), _end(argument), ""
                elif len(arguments) == 1:
                    yield _start(argument), _end(argument), ""

    def _expr(self, node: ast.Expr):
        if not isinstance(node.value, ast.Constant):
            yield "pass"

    def _assign(self, node: ast.Assign):
        if not isinstance(node.targets[0], (ast.Name, ast.Tuple)):
            yield "pass"

    def _augassign(self, node: ast.AugAssign):
        yield "pass"

    _raise = _delete = _continue = _break = _augassign


def _start(node: ast.AST) -> Position:
    return node.lineno, node.col_offset


def _end(node: ast.AST) -> Position:
    return node.end_lineno, node.end_col_offset
