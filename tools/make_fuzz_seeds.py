#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets into fuzz/corpus: small files that parse to the end.

    python3 tools/make_fuzz_seeds.py
"""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "fuzz" / "corpus"


def write(target, name, data):
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / name).write_bytes(data)


def safetensors(tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def packed(rows, cols, bits, state_bits, block, axis, rotation, interleaved=False):
    entry = {"mode": "trellis", "bits": bits, "group_size": block,
             "trellis": {"L": state_bits, "code": "1mad", "axis": axis}}
    quantization = {"trellis_format": 2 if rotation else 1, **entry, "p": dict(entry)}
    words = rows * cols * bits // 32
    shape = [cols // 512, rows, 48] if interleaved else [rows, cols * bits // 32]
    one = struct.pack("<e", 1.0)
    tensors = {
        "p.weight": ("U32", shape, bytes(i * 37 % 256 for i in range(4 * words))),
        "p.scales": ("F16", [rows], one * rows),
    }
    inputs, outputs = (rows, cols) if axis == 0 else (cols, rows)
    if rotation:
        quantization["p"]["rotation"] = {"in": rotation[0], "out": rotation[1]}
        tensors["p.su"] = ("F16", [inputs], one * inputs)
        tensors["p.sv"] = ("F16", [outputs], one * outputs)
    tensors["p.bias"] = ("F32", [outputs], struct.pack("<f", 0.5) * outputs)
    config = json.dumps({"quantization": quantization}, separators=(",", ":")).encode()
    return struct.pack("<H", len(config)) + config + safetensors(tensors)


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(item):
    if isinstance(item, bool):
        return 7, struct.pack("<?", item)
    if isinstance(item, int):
        return 4, struct.pack("<I", item)
    if isinstance(item, float):
        return 6, struct.pack("<f", item)
    if isinstance(item, str):
        return 8, text(item)
    kind = value(item[0])[0]
    return 9, struct.pack("<IQ", kind, len(item)) + b"".join(value(x)[1] for x in item)


# GGML type, weights a block, bytes a block.
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
         "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84),
         "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210)}


def gguf(metadata, tensors):
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, item in metadata.items():
        kind, raw = value(item)
        head += text(key) + struct.pack("<I", kind) + raw
    data = b""
    for name, (dtype, shape) in tensors.items():
        code, block, size = TYPES[dtype]
        count = 1
        for dim in shape:
            count *= dim
        head += text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", dim) for dim in reversed(shape))
        head += struct.pack("<IQ", code, len(data))
        raw = bytes(i * 11 % 61 for i in range(count // block * size))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def model(architecture, tokenizer, dtype, hidden):
    a = architecture
    metadata = {
        "general.architecture": a, f"{a}.block_count": 1, f"{a}.context_length": 64,
        f"{a}.embedding_length": hidden, f"{a}.feed_forward_length": hidden,
        f"{a}.attention.head_count": 2, f"{a}.attention.head_count_kv": 1,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-5, f"{a}.rope.freq_base": 10000.0,
    }
    if a == "gemma3":
        metadata |= {f"{a}.attention.sliding_window": 8, f"{a}.attention.key_length": hidden // 2,
                     f"{a}.attention.value_length": hidden // 2}
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "c", "\u0120a"]
    metadata |= {"tokenizer.ggml.model": tokenizer, "tokenizer.ggml.tokens": tokens,
                 "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1], "tokenizer.ggml.bos_token_id": 1,
                 "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": True,
                 "tokenizer.chat_template": "{{ messages[0].content }}"}
    if tokenizer == "gpt2":
        metadata |= {"tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.pre": "smollm" if a == "llama" else "qwen2"}
    else:
        metadata |= {"tokenizer.ggml.scores": [-float(i) for i in range(8)]}
    layer, half = "blk.0.", hidden // 2
    tensors = {
        "token_embd.weight": (dtype, [8, hidden]), "output_norm.weight": ("F32", [hidden]),
        layer + "attn_norm.weight": ("F32", [hidden]), layer + "ffn_norm.weight": ("F32", [hidden]),
        layer + "attn_q.weight": (dtype, [hidden, hidden]), layer + "attn_k.weight": (dtype, [half, hidden]),
        layer + "attn_v.weight": (dtype, [half, hidden]), layer + "attn_output.weight": (dtype, [hidden, hidden]),
        layer + "ffn_gate.weight": (dtype, [hidden, hidden]),
    }
    if a == "qwen2":
        tensors |= {layer + "attn_q.bias": ("F32", [hidden]), layer + "attn_k.bias": ("F32", [half]),
                    layer + "attn_v.bias": ("F32", [half])}
    if a == "gemma3":
        tensors |= {layer + "post_attention_norm.weight": ("F32", [hidden]),
                    layer + "attn_q_norm.weight": ("F32", [half])}
    return gguf(metadata, tensors)


def main():
    write("packed_reader", "plain", packed(4, 64, 3, 12, 64, 1, None))
    write("packed_reader", "rotated", packed(8, 128, 2, 8, 128, 0, (4, 64)))
    write("packed_reader", "interleaved", packed(2, 512, 3, 12, 256, 0, None, interleaved=True))
    for path in sorted((ROOT / "tests" / "models").glob("**/config*.json")):
        write("config", "-".join(path.relative_to(ROOT / "tests" / "models").parts), path.read_bytes())
    entry = {"bits": 3, "trellis": {"axis": 0}, "rotation": {"in": 64, "out": 128}}
    defaults = {"mode": "trellis", "bits": 4, "group_size": 192, "trellis": {"L": 12, "code": "3inst", "axis": 1}}
    quantization = {"trellis_format": 2, **defaults, "a.b": entry, "a.c": {}, "a.d": False}
    write("config", "quantization.json", json.dumps({"quantization": quantization}).encode())
    for dtype in TYPES:
        hidden = 256 if TYPES[dtype][1] == 256 else 32
        if hidden == 32:
            write("gguf", f"llama-{dtype}", model("llama", "gpt2", dtype, hidden))
        else:
            write("gguf", f"blocks-{dtype}", gguf({"general.architecture": "llama", "llama.block_count": 1,
                  "llama.attention.head_count": 2, "llama.embedding_length": 256,
                  "llama.feed_forward_length": 256, "llama.context_length": 64,
                  "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "gpt2",
                  "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"]},
                  {"token_embd.weight": (dtype, [3, 256])}))
    write("gguf", "qwen2", model("qwen2", "gpt2", "F16", 32))
    write("gguf", "gemma3", model("gemma3", "llama", "Q8_0", 32))


if __name__ == "__main__":
    main()
