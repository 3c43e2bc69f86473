"""The compiled attention is built once, is found again, and is done without where it cannot be had; with sources of one line."""

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from reluformer.modeling_reluformer.fused.compiled import building, library
from reluformer.modeling_reluformer.fused.compiled.building import (
    COMPILERS,
    CompiledAttentionError,
    Unit,
    build_library,
    is_whole,
    library_name,
)

UNITS = (Unit("attention.cpp", ("-DANSWER=42",)), Unit("kernels.cpp"))
SOURCE = """
#include "kernels.h"
#include <torch/library.h>
int64_t forward() { return kernel(ANSWER); }
TORCH_LIBRARY(reluformer_cpu, library) { library.def("forward() -> int", forward); }
"""
# In a process of its own: what one has loaded stays loaded.
PROGRAM = """
import logging, os, sys, time
from pathlib import Path
from reluformer.modeling_reluformer.fused.compiled import library
from reluformer.modeling_reluformer.fused.compiled.building import Unit
logging.basicConfig(format="%(levelname)s %(message)s", level="INFO")
logging.getLogger("filelock").setLevel("WARNING")
library.SOURCES, library.UNITS = Path(sys.argv[1]), tuple(Unit(*unit) for unit in eval(sys.argv[2]))
library._serves_this_processor = lambda operators: True
"""
STUBS = (("attention.cpp",),)

needs_compiler = pytest.mark.skipif(
    not any(map(building.shutil.which, COMPILERS)), reason="needs a C++ compiler on the PATH"
)


@pytest.fixture
def sources(tmp_path):
    """A folder with a library of one function that needs no header, and is compiled in no time."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "attention.cpp").write_text('extern "C" int answer() { return 42; }\n', encoding="utf-8")
    return folder


@pytest.fixture
def fresh(monkeypatch, sources, tmp_path):
    """A process that has decided nothing, with an empty cache, no variable, and nothing that it loads for good."""
    monkeypatch.delenv(library.VARIABLE, raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "SOURCES", sources)
    monkeypatch.setattr(library, "UNITS", (Unit("attention.cpp"),))
    monkeypatch.setattr(library, "_serves_this_processor", lambda operators: True)
    start = {"_stage": library._BEGINNING, "_operators": None, "_without_attention": None, "_loaded_from": None}
    for name, value in start.items():
        monkeypatch.setattr(library, name, value)
    return monkeypatch


def start(sources: Path, cache: Path, code: str, **environment: str) -> subprocess.Popen:
    kept = {name: value for name, value in os.environ.items() if name != library.VARIABLE}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + code, str(sources), repr(STUBS)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True},
        env={**kept, "TORCH_EXTENSIONS_DIR": str(cache), **environment},
    )


def slow_compiler(folder: Path, seconds: float) -> str:
    """A compiler that takes its time, for $CXX."""
    script = folder / "slow_compiler"
    script.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) sleep {seconds};; esac\nexec c++ "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return str(script)


@needs_compiler
@pytest.mark.slow
def test_several_units_become_operators_of_torch(tmp_path):
    (tmp_path / "kernels.h").write_text("#include <cstdint>\nint64_t kernel(int64_t);\n", encoding="utf-8")
    (tmp_path / "kernels.cpp").write_text(
        '#include "kernels.h"\nint64_t kernel(int64_t i) { return i; }\n', encoding="utf-8"
    )
    (tmp_path / "attention.cpp").write_text(SOURCE, encoding="utf-8")
    target = tmp_path / "attention.so"
    build_library(tmp_path, UNITS, target, building.find_compiler())
    code = f"import torch; torch.ops.load_library({str(target)!r}); print(torch.ops.reluformer_cpu.forward())"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "42\n"


def test_the_name_tells_sources_flags_machine_and_torch_apart(sources, monkeypatch):
    def name(units=UNITS):
        return library_name(sources, units)

    names = [name(), name(UNITS[:1])]
    assert torch.__version__ in names[0] and building.platform.machine() in names[0]
    (sources / "rows.h").write_text("", encoding="utf-8")
    names.append(name())
    (sources / "rows.h").write_text("// other", encoding="utf-8")
    names.append(name())
    assert name() == names[-1]
    monkeypatch.setattr(building.platform, "machine", lambda: "riscv64")
    names.append(name())
    monkeypatch.setattr(torch, "__version__", "9.9")
    names.append(name())
    assert len(set(names)) == len(names)


@needs_compiler
def test_a_small_call_builds_nothing_and_a_large_one_builds_in_one_line(fresh, caplog, tmp_path):
    assert library.library(large=False) is None
    assert (library.loop_name(), library.location(), caplog.messages) == ("python", None, [])
    assert library.library(large=True) is torch.ops.reluformer_cpu
    (line,) = caplog.messages
    assert line.startswith("Building the compiled attention (there is none for torch ")
    assert f" in {tmp_path / 'cache'}, once for all processes. " in line and "RELUFORMER_COMPILED=0" in line
    assert library.library(large=False) is torch.ops.reluformer_cpu
    (built,) = (tmp_path / "cache").glob("*.so")
    assert (library.loop_name(), library.location()) == ("compiled", built)
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} <= {".so", ".lock"}  # no rest of the building


@needs_compiler
def test_one_that_exists_serves_small_calls_too_without_a_compiler(fresh, caplog, tmp_path):
    library.library(large=True)
    caplog.clear()
    fresh.setattr(library, "_loaded_from", None)
    library.reset()
    fresh.setenv("PATH", str(tmp_path))
    assert library.library(large=False) is torch.ops.reluformer_cpu
    assert caplog.messages == []


@needs_compiler
def test_the_package_s_comes_first_and_one_for_another_torch_is_named(fresh, caplog, sources):
    for name in ("attention-x86_64-torch1.0-0123456789ab.so", "not-ours.so"):
        (sources / name).write_text("no library", encoding="utf-8")
    assert library.library(large=True) is not None
    assert (
        "Building the compiled attention (the package has attention-x86_64-torch1.0-0123456789ab.so, which does not fit"
        in caplog.text
    )
    inside = sources / library.location().name
    inside.write_bytes(library.location().read_bytes())
    fresh.setattr(library, "_loaded_from", None)
    library.reset()
    library.library(large=False)
    assert library.location() == inside


@needs_compiler
def test_a_damaged_one_is_built_anew(fresh, sources):
    damaged = library.cache_folder() / library_name(sources, library.UNITS)
    damaged.parent.mkdir()
    damaged.write_bytes(b"half a file")
    assert library.library(large=False) is None
    assert library.library(large=True) is not None
    assert library.location() == damaged and damaged.stat().st_size > 1000


@needs_compiler
def test_a_part_of_one_is_never_loaded(fresh, sources):
    """The system would end the process, not raise an error."""
    assert library.library(large=True) is not None
    whole = library.location()
    assert is_whole(whole)
    content = whole.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 40):
        whole.write_bytes(content[:size])
        fresh.setattr(library, "_loaded_from", None)
        library.reset()
        assert library.library(large=False) is None and not whole.exists()


def test_a_compiler_that_cannot_be_read_is_one_warning(fresh, caplog):
    fresh.setenv("CXX", "g++ '")
    assert library.library(large=True) is None
    assert "cannot be read (No closing quotation)" in caplog.text


@pytest.mark.parametrize("compiler", [None, "no-such-compiler -O1"])
def test_without_a_compiler_one_warning_says_what_to_do(fresh, caplog, tmp_path, compiler):
    fresh.setenv("PATH", str(tmp_path))
    fresh.delenv("CXX", raising=False)
    if compiler:
        fresh.setenv("CXX", compiler)
    assert library.library(large=False) is None and caplog.messages == []
    assert [library.library(large=True), library.library(large=True), library.library(large=False)] == [None] * 3
    (line,) = caplog.messages
    told = (
        "CXX='no-such-compiler' is no program"
        if compiler
        else "no C++ compiler (c++, g++, clang++) is on the PATH; install one"
    )
    assert line.startswith(f"The compiled attention could not be built ({told}")
    assert "The Python loop computes instead" in line and caplog.records[0].levelno == logging.WARNING
    assert library.loop_name() == "python"


@needs_compiler
def test_sources_that_do_not_compile_are_one_warning_with_the_compiler_s_words(fresh, caplog, sources):
    (sources / "attention.cpp").write_text("int answer() { return nothing; }", encoding="utf-8")
    assert library.library(large=True) is None and library.library(large=True) is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]  # the building, and its end
    assert "attention.cpp:1:23: error: " in caplog.messages[1] and "nothing" in caplog.messages[1]


@needs_compiler
def test_a_library_that_cannot_be_loaded_is_one_warning(fresh, caplog, sources):
    (sources / "attention.cpp").write_text("int nowhere(); int answer() { return nowhere(); }", encoding="utf-8")
    assert library.library(large=True) is None
    assert "cannot be loaded: " in caplog.messages[1] and "nowhere" in caplog.messages[1]


@needs_compiler
def test_a_folder_that_cannot_be_written_to_is_done_without(fresh, caplog, tmp_path):
    (tmp_path / "cache").write_text("a file", encoding="utf-8")  # permissions do not stop root
    assert library.library(large=True) is torch.ops.reluformer_cpu
    (line,) = caplog.messages
    assert f"for this process alone, since {tmp_path / 'cache'} cannot be written to (" in line
    assert "TORCH_EXTENSIONS_DIR" in line
    assert not library.location().exists()


@pytest.mark.parametrize("value", ["yes", "2", "on"])
def test_an_unknown_value_is_an_error_at_every_call(fresh, value):
    fresh.setenv(library.VARIABLE, value)
    for large in (False, True):
        with pytest.raises(CompiledAttentionError, match=f"RELUFORMER_COMPILED='{value}' is unknown; 1 demands"):
            library.library(large)


def test_0_looks_for_nothing(fresh, caplog):
    fresh.setenv(library.VARIABLE, "0")
    for name in ("_found", "_built"):
        fresh.setattr(library, name, None)
    assert library.library(large=True) is None and caplog.messages == []


def test_1_makes_the_absence_an_error_also_for_a_small_call(fresh, tmp_path):
    fresh.setenv(library.VARIABLE, "1")
    fresh.setenv("PATH", str(tmp_path))
    for _ in range(2):
        with pytest.raises(
            CompiledAttentionError, match=r"^RELUFORMER_COMPILED=1: .* could not be built \(no C\+\+ comp.*Unset"
        ):
            library.library(large=False)


@needs_compiler
def test_1_builds_at_a_small_call(fresh):
    fresh.setenv(library.VARIABLE, "1")
    assert library.library(large=False) is torch.ops.reluformer_cpu


def test_a_processor_that_it_does_not_serve_is_named(fresh, caplog):
    fresh.setattr(library, "_serves_this_processor", lambda operators: False)
    fresh.setattr(library, "_found", lambda: "operators")
    assert library.library(large=False) is None and library.loop_name() == "python"
    (record,) = caplog.records
    assert "needs a processor with AVX2" in record.message
    assert library.sparse_library(large=False) == "operators", "networks that skip zeros need neither AVX2 nor oneDNN"
    with library.python_loop():
        assert library.sparse_library(large=False) is None
    library.reset()
    fresh.setenv(library.VARIABLE, "0")
    assert library.sparse_library(large=True) is None


def test_windows_does_without_it_in_silence(fresh, caplog):
    fresh.setattr(sys, "platform", "win32")
    with caplog.at_level(logging.INFO):
        assert library.library(large=True) is None
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_the_python_loop_computes_within_its_block(fresh):
    fresh.setattr(library, "_stage", library._SETTLED)
    fresh.setattr(library, "_operators", "operators")
    with library.python_loop():
        assert (library.loop_name(), library.library(large=True)) == ("python", None)
    assert library.library(large=True) == library.sparse_library(large=True) == "operators"


def test_threads_wait_for_the_one_that_builds(fresh):
    calls, found = [], []

    def built(demanded):
        calls.append(demanded)
        time.sleep(0.2)

    fresh.setattr(library, "_built", built)
    threads = [threading.Thread(target=lambda: found.append(library.library(large=True))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, calls) == ([None] * 4, [False])


@needs_compiler
def test_processes_wait_for_the_one_that_builds(sources, tmp_path):
    """As torchrun starts them: both end with the same file, and one of them says that it builds."""
    code = "assert library.library(large=True); print(library.location(), library.location().stat().st_ino)"
    compiler = slow_compiler(tmp_path, 4)
    processes = [start(sources, tmp_path / "cache", code, CXX=compiler) for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] != ""
    assert sum(error.count("WARNING Building") for _, error in outputs) == 1, outputs
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_was_forked_during_the_building_waits_and_loads(sources, tmp_path):
    """As data loader workers are: the thread that holds the lock of the parent does not exist in the child."""
    code = """
import threading
thread = threading.Thread(target=library.library, args=[True])
thread.start()
while not library._lock.locked():
    time.sleep(0.01)
time.sleep(0.5)
if child := os.fork():
    thread.join()
    assert os.waitpid(child, 0)[1] == 0 and library.loop_name() == "compiled"
else:
    os._exit(0 if library.library(True) else 1)
"""
    process = start(sources, tmp_path / "cache", code, CXX=slow_compiler(tmp_path, 2))
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0 and error.count("WARNING Building") == 1, error


@needs_compiler
def test_the_module_builds_ahead_and_says_where(fresh, capsys, tmp_path):
    from reluformer.modeling_reluformer.fused.compiled.__main__ import main

    assert main() == 0
    assert capsys.readouterr().out == f"compiled attention: {library.location()}\n"
    library.reset()
    fresh.setenv(library.VARIABLE, "0")
    assert main() == 1
    assert capsys.readouterr().out == "no compiled attention: the Python loop computes\n"
