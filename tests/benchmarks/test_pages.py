"""The generated pages of figures: they are those of the committed files, and say so where nothing was measured."""

import json

import pytest

PAGES = ["speed.vision_tables", "speed.decoder_tables"]


@pytest.mark.parametrize("tables", PAGES)
def test_the_page_is_that_of_the_committed_figures(program, tables):
    tables = program(tables)
    result = program("pages").read_result(program("measurement_file").RESULTS / tables.RESULT)
    assert tables.PAGE.read_text(encoding="utf-8") == tables.render(result)


def test_a_page_is_written_of_what_is_there(program, tmp_path, capsys):
    pages, page = program("pages"), tmp_path / "PAGE.md"

    def render(result):
        body = None if result is None else [f"{result['figure']} s", "", ""]
        return pages.page_text("Time", "speed.time", body, " --model FOLDER")

    def written(result):
        arguments = ["--result", str(result), "--output", str(page)]
        assert pages.write_page(render, "", "time-cpu.json", pages.ROOT / "TIME.md", arguments) == 0
        assert capsys.readouterr().out == f"{page}\n"
        return page.read_text(encoding="utf-8").split("\n", 4)[-1]

    assert written(tmp_path / "none.json") == (
        "Not measured: `python -m benchmarks.speed.time --model FOLDER` measures it.\n"
    )
    (tmp_path / "time.json").write_text(json.dumps({"figure": 1.5}), encoding="utf-8")
    assert written(tmp_path / "time.json") == "1.5 s\n"
