#!/usr/bin/env python3
"""Make small random models of every supported family, with the logits that transformers computes for them.

    python3 tools/make_fixtures.py --out tests/models/random

Each family gets a directory with
  config.json             what this version of transformers writes (rope settings under `rope_parameters`)
  config.v4.json          the same model in the layout of transformers 4 (`rope_theta`, `rope_scaling`, ...)
  model.safetensors       float32 weights
  reference.safetensors   input_ids [2, 24] i64 and logits [2, 24, vocab] f32 (float32, CPU, eager attention)

The settings are chosen so that every feature of a family changes the logits within 24 tokens; the script checks that
by switching each one off.
"""

import argparse
import copy
import json
import zlib
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

LENGTH = 24
SIZE_LIMIT = 350 * 1024
NO_SPECIAL = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

# Every entry: settings for `config.json`, their transformers-4 spelling for `config.v4.json`, and (name ->
# transformers-4 settings that switch the feature off) for the check that the feature matters.
FAMILIES = {
    "llama2": {
        "settings": dict(
            model_type="llama", vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, rms_norm_eps=1e-5,
            tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
        "v4": {"rope_theta": 10000.0, "rope_scaling": None},
        "off": {"rope_theta": {"rope_theta": 500.0}},
    },
    "llama3": {
        # With 32 positions and factors 0.5 and 4 the first rotary frequency is kept, the second is blended and the
        # others are divided by `factor`.
        "settings": dict(
            model_type="llama", vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 0.5,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
            },
        ),
        "v4": {
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        "off": {"rope_scaling": {"rope_scaling": None}, "rope_theta": {"rope_theta": 10000.0}},
    },
    "mistral": {
        "settings": dict(
            model_type="mistral", vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5,
            sliding_window=8, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
        "v4": {"rope_theta": 10000.0},
        "off": {"sliding_window": {"sliding_window": None}, "window 9": {"sliding_window": 9}},
    },
    "qwen2": {
        "settings": dict(
            model_type="qwen2", vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-6,
            tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        # Published configs of this family name a window that `use_sliding_window` switches off.
        "v4": {"rope_theta": 1000000.0, "rope_scaling": None, "use_sliding_window": False, "sliding_window": 8},
        "off": {"rope_theta": {"rope_theta": 10000.0}},
    },
    "qwen3": {
        "settings": dict(
            model_type="qwen3", vocab_size=160, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-6,
            tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        # Published configs of this family name a window that `use_sliding_window` switches off.
        "v4": {"rope_theta": 1000000.0, "rope_scaling": None, "use_sliding_window": False, "sliding_window": 8},
        "off": {"rope_theta": {"rope_theta": 10000.0}},
    },
    "gemma3": {
        "settings": dict(
            model_type="gemma3_text", vocab_size=160, hidden_size=64, intermediate_size=32, num_hidden_layers=6,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=256, rms_norm_eps=1e-6,
            query_pre_attn_scalar=20, sliding_window=8, tie_word_embeddings=True,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000000.0},
            },
        ),
        "v4": {
            "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 3,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        },
        "off": {
            "sliding_window": {"sliding_window": 24},
            "window 9": {"sliding_window": 9},
            "sliding_window_pattern": {"sliding_window_pattern": 2},
            "rope_local_base_freq": {"rope_local_base_freq": 1000000.0},
            "rope_theta": {"rope_theta": 10000.0},
            "rope_scaling": {"rope_scaling": None},
            "query_pre_attn_scalar": {"query_pre_attn_scalar": 8},
        },
    },
}


def build(config):
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


def randomise(model, seed: int) -> None:
    """Draw every parameter anew, in a fixed order, so that nothing is left at zero or one."""
    gen = torch.Generator().manual_seed(seed)
    gemma = model.config.model_type.startswith("gemma")
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=gen)
            if name.endswith("norm.weight"):
                weight.copy_(0.3 * noise if gemma else 1.0 + 0.3 * noise)  # gemma multiplies by 1 + weight
            elif name.endswith("bias"):
                weight.copy_(0.5 * noise)
            elif "q_proj" in name or "k_proj" in name:
                weight.copy_(0.2 * noise)  # large enough for attention that is far from uniform
            else:
                weight.copy_(0.125 * noise)


@torch.no_grad()
def logits_of(model, input_ids):
    return model(input_ids, use_cache=False).logits.float()


def v4_config(stored: dict, classic: dict) -> dict:
    newer = ("rope_parameters", "dtype", "layer_types", "_sliding_window_pattern", "use_bidirectional_attention")
    config = {k: v for k, v in stored.items() if k not in newer}
    if config.get("head_dim", 0) * config["num_attention_heads"] == config["hidden_size"]:
        del config["head_dim"]  # configs of that time leave it out where it follows from the others
    config |= classic | {"torch_dtype": "float32", "transformers_version": "4.51.3"}
    return dict(sorted(config.items()))


def with_weights(config_dict: dict, weights: dict):
    # A copy, since transformers completes the rope settings in place.
    settings = {k: v for k, v in copy.deepcopy(config_dict).items() if k not in ("model_type", "transformers_version")}
    model = build(AutoConfig.for_model(config_dict["model_type"], **settings))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def make(family: str, spec: dict, out: Path, seed: int) -> None:
    settings = copy.deepcopy(spec["settings"])
    seed += zlib.crc32(family.encode()) % 10000
    model = build(AutoConfig.for_model(settings.pop("model_type"), **NO_SPECIAL, **settings))
    randomise(model, seed)
    gen = torch.Generator().manual_seed(seed + 1)
    input_ids = torch.randint(0, settings["vocab_size"], (2, LENGTH), generator=gen)
    logits = logits_of(model, input_ids)

    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    save_file({"input_ids": input_ids, "logits": logits.contiguous()}, out / "reference.safetensors")
    stored = json.loads((out / "config.json").read_text())
    classic = v4_config(stored, spec["v4"])
    (out / "config.v4.json").write_text(json.dumps(classic, indent=2) + "\n")

    # What lies on the disk must give the same logits, through either config.
    again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    weights = load_file(out / "model.safetensors")
    drift = {
        "reloaded": (logits_of(again, input_ids) - logits).abs().max().item(),
        "config.v4": (logits_of(with_weights(classic, weights), input_ids) - logits).abs().max().item(),
    }
    size = (out / "model.safetensors").stat().st_size
    steps = (logits[:, 1:] - logits[:, :-1]).abs().amax(-1)
    print(f"{family}: {size} bytes, logits std {logits.std():.3f}, max {logits.abs().max():.2f}, drift {drift}")
    print("  config keys:", ", ".join(stored))
    print("  tensors:", {k: list(v.shape) for k, v in weights.items() if "layers." not in k or "layers.0." in k})
    assert torch.isfinite(logits).all() and steps.min() > 0.1, "logits must be finite and differ between positions"
    assert max(drift.values()) < 1e-5, drift
    assert size <= SIZE_LIMIT, size
    for name, change in spec["off"].items():
        delta = (logits_of(with_weights(classic | change, weights), input_ids) - logits).abs().max().item()
        print(f"  other {name}: logits move by {delta:.3g}")
        assert delta > 1e-3, f"{name} does not matter"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tests/models/random"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("families", nargs="*", help="default: all")
    args = parser.parse_args()
    print("torch", torch.__version__, "transformers", transformers.__version__)
    failed = []
    for family in args.families or FAMILIES:
        try:
            make(family, FAMILIES[family], args.out / family, args.seed)
        except Exception as error:  # report every family before giving up
            failed.append(family)
            print(f"{family}: FAILED: {type(error).__name__}: {error}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
