"""Small changes of a source text, one operator each: what sample.py draws from.

Python is read by `ast`, so that a change is one of the program and not of its text. A kept tool would serve neither C++
nor JavaScript, and of those for Python mutmut rewrites every function, and cosmic-ray swaps no arguments and drops no
statements. C++ and JavaScript are read by regular expressions; what does not compile is drawn again.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from typing import NamedTuple


class Change(NamedTuple):
    """The bytes from `start` to `end` of a file are replaced by `text`; `line` counts from 1."""

    operator: str
    line: int
    start: int
    end: int
    text: str


_COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
# Not computed: annotations, decorators, and what positions are wrong in before Python 3.12.
_SKIPPED = {"annotation", "returns", "decorator_list"}


def changes(path: str, source: str) -> list[Change]:
    """All changes of a file."""
    return _of_python(source) if path.endswith(".py") else _of_text(source)


def _of_python(source: str) -> list[Change]:
    # columns of `ast` count bytes
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _visited(ast.parse(source)):
        for operator, changed in _changed(node):
            # the condition of a statement stands for the statement
            place = node.test if isinstance(node, (ast.If, ast.While)) else node
            start = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            text = ast.unparse(changed)
            found.append(
                Change(operator, place.lineno, start, end, f"({text})" if isinstance(place, ast.expr) else text)
            )
    return found


def _visited(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.JoinedStr):
        return
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in _SKIPPED:
                yield from _visited(child)


def _changed(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The operators that apply to a node, each with the node that takes its place."""
    for changed in (_of_operators, _of_values, _of_calls, _of_conditions, _of_slices, _of_statements):
        yield from changed(node)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _of_operators(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=operators):
            for index, operator in enumerate(operators):
                other = _COMPARED[type(operator)]()
                yield "comparison", _with(node, ops=[*operators[:index], other, *operators[index + 1 :]])
        case ast.BinOp(op=operator) if type(operator) in _COMPUTED:
            yield "arithmetic", _with(node, op=_COMPUTED[type(operator)]())
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "arithmetic", operand


def _of_values(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Constant(value=bool(value)):
            yield "boolean", _with(node, value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", _with(node, value=value + 1)
            yield "constant", _with(node, value=value - 1)


# Functions whose result does not depend on the order of their arguments.
_SYMMETRIC = ("min", "max", "std::min", "std::max")


def _of_calls(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Call(args=arguments, keywords=keywords):
            for index in range(len(keywords)):
                yield "argument left out", _with(node, keywords=[*keywords[:index], *keywords[index + 1 :]])
            if arguments:
                yield "argument left out", _with(node, args=arguments[:-1])
            if len(arguments) > 1 and ast.unparse(node.func) not in _SYMMETRIC:
                yield "argument swapped", _with(node, args=[arguments[1], arguments[0], *arguments[2:]])


def _of_conditions(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.BoolOp(op=operator, values=values):
            yield "boolean", _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
            for index in range(len(values)):
                others = [*values[:index], *values[index + 1 :]]
                yield "boolean", _with(node, values=others) if len(others) > 1 else others[0]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "boolean", operand
        case ast.IfExp(test=test):
            yield "branch", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.If(test=test) | ast.While(test=test):
            yield "branch", ast.UnaryOp(ast.Not(), test)


def _of_slices(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        for bound in ("lower", "upper", "step"):
            if getattr(node.slice, bound) is not None:
                yield "slice", _with(node, slice=_with(node.slice, **{bound: None}))


def _of_statements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Continue() | ast.Break():
            yield "statement dropped", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield "statement dropped", ast.Pass()


_SIGNS = {"<=": "<", "<": "<=", ">=": ">", ">": ">=", "==": "!=", "!=": "==", "===": "!==", "!==": "===", "&&": "||"}
_SIGNS |= {"||": "&&", "+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "+=": "-=", "-=": "+=", "*=": "/=", "??": "&&"}
_SIGN = re.compile(rf"(?<= )({'|'.join(map(re.escape, sorted(_SIGNS, key=len, reverse=True)))})(?= |$)", re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])(\d+)((?:\.\d+)?f?)(?![\w.])")
_NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ ]*#(?:[^\n\\]|\\.)*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", re.DOTALL | re.MULTILINE
)
_TEMPLATE = re.compile(r"`[^`]*`")
_CALL = re.compile(r"[\w>]\(")
_BRANCH = re.compile(r"\b(?:if|while) (?:constexpr )?\(")
_STATEMENT = re.compile(
    r"^[ ]+(?!return|const|let|auto|using|throw|case)[\w.\[\]>*:-]+(?:[ ](?:[-+*|]?=)[ ]|\()[^\n]*;$", re.MULTILINE
)


def _of_text(source: str) -> list[Change]:
    """Of C++ and JavaScript, as formatters write them: spaces around operators, none within the brackets of a
    template."""

    def blank(match: re.Match) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    code = _NOT_CODE.sub(blank, source)
    code = _TEMPLATE.sub(blank, code)
    found: list[tuple[str, int, int, str]] = []
    for sign in _SIGN.finditer(code):
        kind = "boolean" if sign[1] in ("&&", "||", "??") else "comparison" if sign[1][0] in "<>=!" else "arithmetic"
        found.append((kind, *sign.span(1), _SIGNS[sign[1]]))
    for number in _NUMBER.finditer(code):
        found += [("constant", *number.span(1), str(int(number[1]) + step)) for step in (1, -1)]
    for word in re.finditer(r"\b(true|false)\b", code):
        found.append(("boolean", *word.span(), "false" if word[0] == "true" else "true"))
    for negation in re.finditer(r"(?<=[ (])!(?=[\w(])", code):
        found.append(("boolean", *negation.span(), ""))
    for branch in _BRANCH.finditer(code):
        if end := _closing(code, branch.end()):
            found.append(("branch", branch.end(), end, f"!({source[branch.end() : end]})"))
    for statement in _STATEMENT.finditer(code):
        if code[: statement.start()].rstrip()[-1:] in ("", ";", "{", "}", ")"):
            found.append(("statement dropped", *statement.span(), " ;"))
    for call in _CALL.finditer(code):
        if end := _closing(code, call.end()):
            found += _of_arguments(source, code, call.end(), end)
    return [
        Change(kind, source.count("\n", 0, start) + 1, len(source[:start].encode()), len(source[:end].encode()), text)
        for kind, start, end, text in sorted(found)
    ]


def _of_arguments(source: str, code: str, start: int, end: int) -> list[tuple[str, int, int, str]]:
    depth, bounds = 0, [start]
    for index in range(start, end):
        depth += (code[index] in "([{") - (code[index] in ")]}")
        if code[index] == "," and depth == 0:
            bounds.append(index + 1)
    arguments = [source[a:b].rstrip(",").strip() for a, b in zip(bounds, [*bounds[1:], end], strict=True)]
    if len(arguments) < 2:
        return []
    changed = [("argument left out", start, end, ", ".join(arguments[:-1]))]
    function = re.search(r"[\w:]+$", re.sub(r"<[^<>]*>$", "", source[: start - 1]))
    if function is None or function[0] not in _SYMMETRIC:
        swapped = [arguments[1], arguments[0], *arguments[2:]]
        changed.append(("argument swapped", start, end, ", ".join(swapped)))
    return changed


def _closing(code: str, start: int) -> int | None:
    """Where the bracket that opens before `start` closes, on the same line."""
    depth = 1
    for index in range(start, len(code)):
        depth += (code[index] in "([{") - (code[index] in ")]}")
        if depth == 0:
            return index
        if code[index] == "\n":
            return None
    return None
