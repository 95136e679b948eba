#!/usr/bin/env python3
"""Runs a command and fails when its peak resident memory passes a limit (Linux and macOS).

    python3 tools/peak_rss.py LIMIT_MIB COMMAND...
"""
import resource
import subprocess
import sys

if len(sys.argv) < 3:
    sys.exit(__doc__)
limit, command = float(sys.argv[1]), sys.argv[2:]
code = subprocess.run(command).returncode
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 2**20
print(f"peak resident memory: {peak:.0f} MiB, limit {limit:.0f} MiB", file=sys.stderr)
sys.exit(code or int(peak > limit))
