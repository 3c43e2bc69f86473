"""The compiled library is built once, is found again, and is done without where it cannot be had; with a source of
one line."""

import logging
import os
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from reluformer.modeling_reluformer.compiled import building, library
from reluformer.modeling_reluformer.compiled.building import Unit, library_name

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, building.COMPILERS)), reason="needs a C++ compiler on the PATH"
)


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process that has decided nothing, with a library that needs no header, an empty cache, and no variable."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/attention.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.delenv(library.VARIABLE, raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    operators = SimpleNamespace(supports=lambda dtype: True, instruction_sets=lambda: ["avx2"])
    stand_in = SimpleNamespace(load_library=torch.ops.load_library, reluformer_cpu=operators)
    monkeypatch.setattr(library, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(library, "UNITS", (Unit("attention.cpp"),))
    start = SimpleNamespace(ops=stand_in, __version__=torch.__version__, float32=torch.float32)
    monkeypatch.setattr(library, "torch", start)
    forget(monkeypatch)
    return monkeypatch


def forget(monkeypatch):
    for name, value in {"_stage": library._BEGINNING, "_operators": None, "loaded_from": None}.items():
        monkeypatch.setattr(library, name, value)


@needs_compiler
@pytest.mark.skipif(os.environ.get(library.VARIABLE) == "0", reason="switched off")
def test_the_sources_of_the_package_compile(caplog):
    """Where they do not, all other tests of the library are skipped."""
    library.library(large=True)
    assert library.loaded_from is not None, caplog.messages


def test_the_name_tells_sources_flags_machine_and_torch_apart(tmp_path, monkeypatch):
    def name(*flags):
        return library_name(tmp_path, (Unit("attention.cpp", flags),))

    names = [name(), name("-DANSWER=42")]
    for text in ("", "// other", "// OTHER"):  # two of one length, as a changed sign leaves it
        (tmp_path / "rows.h").write_text(text)
        names.append(name())
    assert name() == names[-1] and torch.__version__ in names[0] and building.platform.machine() in names[0]
    monkeypatch.setattr(building.platform, "machine", lambda: "riscv64")
    names.append(name())
    monkeypatch.setattr(torch, "__version__", "9.9")
    names.append(name())
    assert len(set(names)) == len(names)


def test_libraries_are_kept_in_the_folder_of_torchs_extensions_else_in_a_cache_of_the_user(monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/extensions")
    assert library._cache_folder() == Path("/extensions")
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert library._cache_folder() == Path("/caches/reluformer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert library._cache_folder() == Path.home() / ".cache/reluformer"


@needs_compiler
def test_a_small_call_builds_nothing_a_large_one_does_and_later_ones_find_it(fresh, caplog, tmp_path):
    assert library.library(large=False) is None
    assert (library.loaded_from, caplog.messages) == (None, [])
    assert library.library(large=True) is library.torch.ops.reluformer_cpu
    (line,) = caplog.messages
    assert line.startswith("Building the compiled library for torch ")
    assert f"once for all processes, in {tmp_path / 'cache'}." in line and "RELUFORMER_COMPILED=0" in line
    (built,) = (tmp_path / "cache").glob("*.so")
    assert library.loaded_from == built
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} <= {".so", ".lock"}  # no rest of the building
    forget(fresh)
    fresh.setenv("PATH", str(tmp_path))
    assert library.library(large=False) is library.torch.ops.reluformer_cpu and len(caplog.messages) == 1
    inside = shutil.copy(built, tmp_path / "sources" / built.name)  # as a wheel brings it
    forget(fresh)
    assert library.library(large=False) and library.loaded_from == inside


@needs_compiler
def test_the_command_builds_it_and_says_where_or_that_there_is_none(fresh, capsys):
    def command():
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("reluformer.modeling_reluformer.compiled", run_name="__main__")
        return bool(ended.value.code), capsys.readouterr().out

    assert command() == (False, f"compiled library: {library.loaded_from}\n") and library.loaded_from is not None
    forget(fresh)
    fresh.setenv(library.VARIABLE, "0")
    assert command() == (True, "no compiled library: the Python loop computes\n")


def test_the_library_of_the_package_is_kept_where_it_cannot_be_loaded(fresh):
    inside = library.SOURCES / library_name(library.SOURCES, library.UNITS)
    inside.write_text("of another system")
    assert library.library(large=False) is None and inside.is_file()


@needs_compiler
def test_one_that_cannot_be_loaded_is_built_anew(fresh, tmp_path):
    built = tmp_path / "cache" / library_name(library.SOURCES, library.UNITS)
    built.parent.mkdir()
    built.write_text("of another system")
    assert library.library(large=False) is None
    assert library.library(large=True) and built.stat().st_size > 1000


@pytest.mark.parametrize(
    ("compiler", "words"),
    [("", "no C++ compiler (c++, g++, clang++) is on the PATH; install"), ("missing -O1", "missing cannot be run")],
)
def test_without_a_compiler_one_warning_says_what_to_do(fresh, caplog, tmp_path, compiler, words):
    fresh.setenv("PATH", str(tmp_path))
    fresh.setenv("CXX", compiler)
    assert library.library(large=False) is None and caplog.messages == []
    assert [library.library(large=True), library.library(large=True), library.library(large=False)] == [None] * 3
    *building_it, line = caplog.messages
    assert len(building_it) == bool(compiler) and words in line
    assert line.startswith(
        f"The compiled library could not be built in {tmp_path / 'cache'} ($TORCH_EXTENSIONS_DIR names"
    )
    assert "The Python loop computes instead" in line and caplog.records[-1].levelno == logging.WARNING


def test_a_library_for_another_torch_and_no_compiler_is_one_warning_that_names_both(fresh, caplog, tmp_path):
    fresh.setenv("PATH", str(tmp_path))
    fresh.delenv("CXX", raising=False)
    name = library_name(library.SOURCES, library.UNITS)
    (library.SOURCES / name.replace(f"torch{torch.__version__}", "torch2.12.1+cu130")).write_text("of a wheel")
    assert library.library(large=True) is None
    (line,) = caplog.messages
    assert f"is for torch 2.12.1+cu130, and this is {torch.__version__}: install that torch or a compiler." in line
    assert "translation is by `generate`" in line


@needs_compiler
def test_sources_that_do_not_compile_are_one_warning_with_the_words_of_the_compiler(fresh, caplog):
    (library.SOURCES / "attention.cpp").write_text("int answer() { return nothing; }")
    assert library.library(large=True) is None and library.library(large=True) is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]  # the building, and its end
    assert "attention.cpp:1:23: error: " in caplog.messages[1]


def test_the_variable_turns_it_off(fresh, caplog):
    fresh.setenv(library.VARIABLE, "0")
    assert library.library(large=True) is None and caplog.messages == []


@needs_compiler
@pytest.mark.parametrize("sets", [["avx2"], []])
def test_a_machine_whose_attention_it_does_not_serve_is_told(sets, fresh, caplog):
    """Sparse networks and translation need AVX2 as well, but not oneDNN."""
    vars(library.torch.ops.reluformer_cpu).update(supports=lambda dtype: False, instruction_sets=lambda: sets)
    assert [library.library(large=True) is not None for _ in range(2)] == [bool(sets)] * 2
    assert "needs a processor with AVX2" in caplog.messages[-1]


def test_other_systems_do_without_it_in_silence(fresh, caplog):
    fresh.setattr(sys, "platform", "win32")
    assert library.library(large=True) is None and caplog.messages == []


def test_a_library_that_came_for_another_torch_is_told_of(fresh, tmp_path):
    assert library._for_another_torch() == ""
    brought = tmp_path / "sources" / f"library-x86_64-torch{torch.__version__}-1234.so"
    brought.touch()
    assert library._for_another_torch() == ""
    brought.rename(brought.with_name("library-x86_64-torch2.12.1+cpu-1234.so"))
    said = library._for_another_torch()
    assert f"is for torch 2.12.1+cpu, and this is {torch.__version__}: install that torch or a compiler." in said
