#!/usr/bin/env python3
"""Quantizes a model at several bits, rotated and not, and prints the README's table.

    python3 tools/eval_table.py TRELLIQ MODEL TEXT FOLDER

Models that FOLDER has already are not quantized again.
"""
import json
import pathlib
import subprocess
import sys

BITS = (2, 3, 4, 5)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    trelliq, model, text, folder = sys.argv[1:]
    print("| K | rotated | bits a coded weight | KL mean | KL median | KL 99 % | top-1 agreement | perplexity |")
    print("|---|---|---|---|---|---|---|---|")
    for rotate in ("on", "off"):
        for bits in BITS:
            out = pathlib.Path(folder) / f"k{bits}-rotate-{rotate}"
            command = [trelliq, "quantize", model, out, "--bits", str(bits), "--rotate", rotate]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            command = [trelliq, "eval", out, "--reference", model, "--text", text, "--windows", "6", "--json"]
            report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            totals = json.loads((out / "trelliq_manifest.json").read_text())["totals"]
            print(f"| {bits} | {rotate} | {totals['bits_per_weight']:.3f} | {report['kl_mean']:.3f} "
                  f"| {report['kl_median']:.3f} | {report['kl_p99']:.2f} | {report['top1_agreement']:.3f} "
                  f"| {report['perplexity']:.1f} |", flush=True)
    print(f"| source | | | | | | | {report['reference_perplexity']:.1f} |")


if __name__ == "__main__":
    main()
