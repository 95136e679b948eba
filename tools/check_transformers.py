#!/usr/bin/env python3
"""Load a model directory with Hugging Face transformers in float32 and print a JSON report.

Used to show that a directory written by `trelliq decode` is an ordinary model for transformers, and to get the
perplexity it has there:

    python3 tools/check_transformers.py MODEL_DIR tests/data/held-out.txt

The text is cut into consecutive windows that share no tokens; the first token of a window is context only.
"""

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def windowed_nll(model, ids: list[int], window: int, max_windows: int) -> tuple[float, int]:
    """Mean negative log-likelihood (nats) over tokens 1.. of each full window, and how many tokens that is."""
    total, count = 0.0, 0
    for start in range(0, len(ids) - window + 1, window):
        if count // (window - 1) == max_windows:
            break
        chunk = torch.tensor([ids[start : start + window]], device=model.device)
        logits = model(chunk, use_cache=False).logits[0, :-1].float()
        total += F.cross_entropy(logits, chunk[0, 1:], reduction="sum").item()
        count += window - 1
    if count == 0:
        raise SystemExit(f"the text has {len(ids)} tokens, fewer than one window of {window}")
    return total / count, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="directory with config.json, weights and tokenizer.json")
    parser.add_argument("text", type=Path, help="UTF-8 text to score")
    parser.add_argument("--window", type=int, default=512, help="tokens in a window (default %(default)s)")
    parser.add_argument("--max-windows", type=int, default=16, help="stop after so many (default %(default)s)")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager")
    model.to(args.device).eval()
    ids = tokenizer(args.text.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    nll, scored = windowed_nll(model, ids, args.window, args.max_windows)
    with torch.no_grad():
        last = model(torch.tensor([ids[:16]], device=model.device), use_cache=False).logits[0, -1].float()
    report = {
        "transformers": transformers.__version__,
        "architecture": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "window": args.window,
        "tokens_scored": scored,
        "mean_nll": nll,
        "perplexity": math.exp(nll),
        "first_ids": ids[:16],
        "first_logits": [round(x, 5) for x in last[:8].tolist()],
        "argmax": int(last.argmax()),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
