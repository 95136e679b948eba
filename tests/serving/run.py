"""Tests of `trelliq serve` from the outside: the official openai package, the documentation's
examples and the page in a browser.

    python3 tests/serving/run.py [--trelliq target/release/trelliq] [pytest's arguments]

The packages go into a virtual environment under target/. Where that cannot be made, or there is no
browser, the tests that need it are skipped and named.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / "target" / "serving-venv"
PACKAGES = ["openai>=2,<4", "pytest>=8,<10"]


def environment() -> Path | None:
    """The Python of the environment, made when it is not there; None where it cannot be made."""
    python = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin") / "python"
    marker = ENVIRONMENT / "packages.txt"
    wanted = "\n".join(PACKAGES)
    if marker.exists() and marker.read_text() == wanted:
        return python
    commands = [
        [sys.executable, "-m", "venv", str(ENVIRONMENT)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
    ]
    for command in commands:
        try:
            subprocess.run(command, check=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"SKIPPED all of tests/serving: {command[1:4]} failed: {error}")
            return None
    marker.write_text(wanted)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trelliq", type=Path)
    arguments, rest = parser.parse_known_args()
    places = [ROOT / "target" / profile / "trelliq" for profile in ("release", "debug")]
    binary = arguments.trelliq or next((place for place in places if place.exists()), None)
    if binary is None or not binary.exists():
        print(f"there is no trelliq at {binary or ' or '.join(map(str, places))}: build it first")
        return 1
    python = environment()
    if python is None:
        return 0
    command = [str(python), "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(Path(__file__).parent), *rest]
    return subprocess.call(command, env={**os.environ, "BINARY_UNDER_TEST": str(binary.resolve())})


if __name__ == "__main__":
    sys.exit(main())
