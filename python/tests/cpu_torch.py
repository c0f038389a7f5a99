"""Install PyTorch for tests on machines without an NVIDIA GPU, into the environment of the running interpreter.

The wheel for Linux brings 2.4 GB of libraries for GPUs, which it loads but never calls without one. This installs the
wheel without them and compiles libraries of empty functions in their place. For tests only.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from importlib import metadata
from pathlib import Path

FOR_GPUS = re.compile(r"nvidia|cuda|triton")
"""Requirements that are left out."""
TOOLKIT = re.compile(r"(cuda-toolkit)\[.*\](==[^;]+)")
"""The requirement that stands for most of them. Of its parts, these are small, and called when PyTorch is loaded."""
CALLED = "cudart,cufile,cupti"
DRIVER = "libcuda.so.1"
"""The driver's library, which must not seem to be there."""


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def install(*packages: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-conflicts", *packages], check=True)


def missing(objects: list[Path]) -> set[str]:
    """The libraries that the loader does not find."""
    return set(
        re.findall(r"^\s*(\S+) => not found", "".join(output("ldd", str(path)) for path in objects), re.MULTILINE)
    )


def undefined(path: Path) -> dict[str, str]:
    """The symbols that an object needs, each with its version or an empty text."""
    rows = re.findall(
        r" (?:FUNC|OBJECT|NOTYPE|TLS) +GLOBAL +\S+ +UND (\S+)", output("readelf", "-W", "--dyn-syms", str(path))
    )
    return {name: version for name, _, version in (row.partition("@") for row in rows)}


def defined(objects: list[Path]) -> set[str]:
    """The symbols that these objects, and the libraries that they find, have."""
    loaded = {path for object_ in objects for path in re.findall(r"=> (/\S+)", output("ldd", str(object_)))}
    libraries = loaded | {str(path) for path in objects}
    return {
        line.split("@")[0] for path in libraries for line in output("nm", "-D", "--defined-only", "-j", path).split()
    }


def version_files(path: Path) -> dict[str, str]:
    """The library of each version that an object needs."""
    files: dict[str, str] = {}
    library = ""
    for line in output("readelf", "-W", "-V", str(path)).splitlines():
        if found := re.search(r"File: (\S+)", line):
            library = found[1]
        elif (found := re.search(r"Name: (\S+) +Flags", line)) and library:
            files[found[1]] = library
    return files


def compile_library(path: Path, symbols: dict[str, set[str]]) -> None:
    """A library of empty functions, by version."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "empty.c"), Path(folder, "versions")
        names = sorted(set().union(*symbols.values()))
        source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
        versions = [
            f"{version} {{ {' '.join(f'{name};' for name in sorted(some))} }};"
            for version, some in symbols.items()
            if version
        ]
        script.write_text("\n".join(versions) + "\n")
        options = [f"-Wl,--version-script={script}"] if versions else []
        output(
            "gcc",
            "-shared",
            "-fPIC",
            "-w",
            "-fno-builtin",
            f"-Wl,-soname,{path.name}",
            *options,
            "-o",
            str(path),
            str(source),
        )


def main() -> None:
    install("--no-deps", "torch")
    required = [line for line in metadata.requires("torch") or [] if "extra ==" not in line]
    install(*(line for line in required if not FOR_GPUS.search(line)))
    install(*(TOOLKIT.sub(rf"\1[{CALLED}]\2", line) for line in required if TOOLKIT.match(line)))
    torch = Path(sysconfig.get_path("platlib"), "torch")
    objects = [*sorted((torch / "lib").glob("*.so")), *sorted(torch.glob("_C*.so"))]
    absent = sorted(missing(objects) - {DRIVER})
    present = defined(objects)
    symbols: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in absent}
    for path in objects:
        files = version_files(path)
        for name, version in undefined(path).items():
            # What has no version may be anywhere.
            library = files.get(version) if version else absent[0]
            if library in symbols and name not in present:
                symbols[library][version].add(name)
    for name, some in symbols.items():
        compile_library(torch / "lib" / name, some)
    output(sys.executable, "-c", "import torch; assert torch.ones(2).sum() == 2; assert not torch.cuda.is_available()")


if __name__ == "__main__":
    main()
