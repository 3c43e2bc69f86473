"""Nothing in the sources turns on what executes foreign code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Every folder but that of the tests, which provoke what is refused here.
FOLDERS = [path for path in ROOT.glob("[a-z]*/") if path.name not in ("tests", "build", "dist", "runs")]
FOREIGN = re.compile(
    r"(?<!`)trust_remote_code=(?!False)|weights_only=False|(?<![.\w])(?:eval|exec)\((?!\))|os\.system\(|pickle\.loads?\("
    r"|yaml\.(?:unsafe_|full_)?load\((?!.*, _Loader\))"  # with which duplicate keys are an error
)


def test_no_source_executes_anything_foreign():
    sources = [path for folder in FOLDERS for path in folder.rglob("*.py")]
    assert len(sources) > 50
    found = [(path, match[0]) for path in sources if (match := FOREIGN.search(path.read_text(encoding="utf-8")))]
    assert found == []
    assert "class _Loader(yaml.SafeLoader):" in (ROOT / "configuration" / "recipe_parser.py").read_text(
        encoding="utf-8"
    )
