"""The pages of the documentation, and the code blocks in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# Written by programs from what they ran: nothing in them is for copying.
GENERATED = ("docs/errors.md", "docs/reproduction.md")
_FENCE = re.compile(
    r"(?P<before>[^\n]*\n)?^```(?P<language>[\w{}-]*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
# A model of the Hub: an id of owner and name that is no run folder.
_FROM_THE_HUB = re.compile(r"""from_pretrained\(\s*["'](?!runs/)[\w.-]+/[\w.-]+["']""")
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+?) -->")
_NEEDS = re.compile(r"<!-- needs: (?P<package>\w+) -->")


@dataclass(frozen=True)
class CodeBlock:
    """page: from the repository's root. line: of the fence. not_run: why it is not run; None: it is.

    needs: a package of an extra, without which it is skipped.
    """

    page: str
    line: int
    language: str
    code: str
    not_run: str | None
    needs: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def page_names() -> list[str]:
    """README.md and docs/*.md."""
    return ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]


def code_blocks(language: str) -> list[CodeBlock]:
    """Those of one language, on all pages but the generated ones."""
    return [
        block
        for page in page_names()
        if page not in GENERATED
        for block in blocks_of(page)
        if block.language == language
    ]


def blocks_of(page: str) -> list[CodeBlock]:
    """All blocks of one page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        reason = _NOT_RUN.search(match["before"] or "")
        not_run = reason and reason["reason"]
        if _FROM_THE_HUB.search(match["code"]):
            not_run = "needs a model of the Hub"
        needs = _NEEDS.search(match["before"] or "")
        package = needs and needs["package"]
        found.append(CodeBlock(page, line, match["language"], match["code"], not_run, package))
    return found
