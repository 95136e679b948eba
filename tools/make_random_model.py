#!/usr/bin/env python3
"""Writes a packed model of random codes, for measurements of speed: every word is a legal code.

    python3 tools/make_random_model.py OUT [--geometry 8b|1b|small] [--bits K] [--head-bits K] [--layers N]

Needs numpy. Weights have about the variance 1 / inputs, so that activations stay finite; the embedding is
dense bf16, the head coded (with --head-bits 0 it is dense too). The tokenizer knows a word for each token.
"""

import argparse
import json
import pathlib
import struct

import numpy as np

# hidden, inner, layers, query heads, key heads, head width, vocabulary
GEOMETRIES = {
    "8b": (4096, 14336, 32, 32, 8, 128, 128256),  # Llama 3.1 8B
    "1b": (2048, 8192, 16, 32, 8, 64, 128256),  # Llama 3.2 1B
    "small": (512, 1536, 2, 8, 2, 64, 1000),
}


class Writer:
    """A safetensors file whose tensors are made when they are written, one at a time."""

    def __init__(self):
        self.tensors, self.offset = [], 0

    def add(self, name, dtype, shape, make):
        size = int(np.prod(shape)) * {"U32": 4, "F32": 4, "F16": 2, "BF16": 2}[dtype]
        self.tensors.append((name, dtype, shape, self.offset, self.offset + size, make))
        self.offset += size

    def write(self, path):
        header = {
            name: {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
            for name, dtype, shape, start, end, _ in self.tensors
        }
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name, _, _, start, end, make in self.tensors:
                data = make()
                assert len(data) == end - start, name
                out.write(data)


def bf16(values):
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--geometry", choices=GEOMETRIES, default="8b")
    parser.add_argument("--bits", type=int, default=3)
    parser.add_argument("--head-bits", type=int, default=3)
    parser.add_argument("--state-bits", type=int, default=16)
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
    hidden, inner, layers, heads, kv_heads, width, vocab = GEOMETRIES[args.geometry]
    layers = args.layers or layers
    rng = np.random.default_rng(0)
    file, coded = Writer(), {}

    def linear(path, inputs, outputs, bits):
        entry = {"mode": "trellis", "bits": bits, "group_size": 256}
        entry["trellis"] = {"L": args.state_bits, "code": "1mad", "axis": 0}
        sides = [min(512, size & -size) for size in (inputs, outputs)]
        entry["rotation"] = {"in": sides[0], "out": sides[1]}
        coded[path] = entry
        words = outputs * bits // 32
        file.add(f"{path}.weight", "U32", [inputs, words], lambda: rng.bytes(4 * inputs * words))
        scale = np.full(inputs, inputs**-0.5, np.float16)
        file.add(f"{path}.scales", "F16", [inputs], scale.tobytes)
        # Layers of one input share its signs, as in a model that was quantized.
        parent = path.rsplit(".", 1)[0] + str(inputs)
        for side, size, seed in (("su", inputs, parent), ("sv", outputs, path)):
            signs = np.random.default_rng(list(seed.encode())).choice([-1, 1], size)
            file.add(f"{path}.{side}", "F16", [size], signs.astype(np.float16).tobytes)

    def norm(path, size):
        file.add(f"{path}.weight", "F32", [size], np.ones(size, np.float32).tobytes)

    def dense(path, outputs, inputs, scale):
        def make():
            return bf16(scale * rng.standard_normal((outputs, inputs), dtype=np.float32))

        file.add(f"{path}.weight", "BF16", [outputs, inputs], make)

    for layer in range(layers):
        at = f"model.layers.{layer}"
        norm(f"{at}.input_layernorm", hidden)
        norm(f"{at}.post_attention_layernorm", hidden)
        linear(f"{at}.self_attn.q_proj", hidden, heads * width, args.bits)
        linear(f"{at}.self_attn.k_proj", hidden, kv_heads * width, args.bits)
        linear(f"{at}.self_attn.v_proj", hidden, kv_heads * width, args.bits)
        linear(f"{at}.self_attn.o_proj", heads * width, hidden, args.bits)
        linear(f"{at}.mlp.gate_proj", hidden, inner, args.bits)
        linear(f"{at}.mlp.up_proj", hidden, inner, args.bits)
        linear(f"{at}.mlp.down_proj", inner, hidden, args.bits)
    norm("model.norm", hidden)
    dense("model.embed_tokens", vocab, hidden, 1.0)
    if args.head_bits:
        linear("lm_head", hidden, vocab, args.head_bits)
    else:
        dense("lm_head", vocab, hidden, hidden**-0.5)

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    config["quantization"] = {"mode": "trellis", "bits": args.bits, "group_size": 256}
    config["quantization"] |= {"trellis_format": 2, **coded}
    config["quantization"]["trellis"] = {"L": args.state_bits, "code": "1mad", "axis": 0}
    words = {f"w{i}": i for i in range(vocab)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    file.write(args.out / "model.safetensors")
    for name, content in (("config.json", config), ("tokenizer.json", tokenizer)):
        (args.out / name).write_text(json.dumps(content))


if __name__ == "__main__":
    main()
