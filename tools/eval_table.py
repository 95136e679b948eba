#!/usr/bin/env python3
"""Quantizes a model at several bits, rotated and as plain rows, and prints the README's table.

    python3 tools/eval_table.py TRELLIQ MODEL TEXT FOLDER

What FOLDER has of an earlier run is replaced.
"""
import json
import pathlib
import subprocess
import sys

BITS = (2, 3, 4, 5)
# Without a rotation the rows of W, one output each, hold up better than its columns.
WAYS = {"rotated": ["--rotate", "on"], "plain rows": ["--rotate", "off", "--axis", "1"]}


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    trelliq, model, text, folder = sys.argv[1:]
    print("| K | weights | bits a coded weight | KL mean | KL median | KL 99 % | top-1 agreement | perplexity |")
    print("|---|---|---|---|---|---|---|---|")
    for way, switches in WAYS.items():
        for bits in BITS:
            out = pathlib.Path(folder) / f"k{bits}-{way.replace(' ', '-')}"
            command = [trelliq, "quantize", model, out, "--bits", str(bits), *switches, "--overwrite"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            command = [trelliq, "eval", out, "--reference", model, "--text", text, "--windows", "6", "--json"]
            report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            totals = json.loads((out / "trelliq_manifest.json").read_text())["totals"]
            print(f"| {bits} | {way} | {totals['bits_per_weight']:.3f} | {report['kl_mean']:.3f} "
                  f"| {report['kl_median']:.3f} | {report['kl_p99']:.2f} | {report['top1_agreement']:.3f} "
                  f"| {report['perplexity']:.1f} |", flush=True)
    print(f"| source | | | | | | | {report['reference_perplexity']:.1f} |")


if __name__ == "__main__":
    main()
