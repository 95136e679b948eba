#!/usr/bin/env python3
"""Train the tiny language model of the test suite: Llama's architecture, about 2.75 million parameters.

    python3 tools/train_tiny.py --text FILE... --out tests/models/tiny --held-out tests/data/held-out.txt

It trains a byte-level BPE tokenizer and then the model on the given texts, keeps the checkpoint that is best on a
slice of every text that training never sees, and writes a model directory in Hugging Face's layout (bfloat16) along
with `reference.json` and `reference.safetensors`: what transformers computes from the stored weights in float32.

One GPU and a few minutes are enough. Runs with the same options see the same data in the same order; they differ by
the GPU's rounding, and where `--minutes` ends a run before `--steps` does.
"""

import argparse
import json
import math
import re
import time
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from check_transformers import windowed_nll
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"  # ids 0, 1 and 2
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PROMPT = "HAMLET.\nTo be, or not to be, that is the question:\n"
TOKENIZER_CASES = [
    PROMPT,
    "Hello, world!",
    "  leading and trailing spaces  ",
    "It's 1603; they'll've paid 12,345.67 crowns.",
    "naïve café — “quoted” ‘text’ … 日本語 🦉\r\n\ttabbed\n\n\nend",
    f"{TURN}user\nWhat is a hack?{TURN_END}\n{TURN}assistant\n",
    "",
]


# ---- text -----------------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Plain paragraphs: no licence boilerplate, page furniture, common indentation or runs of empty lines."""
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    start = re.search(r"^\*\*\* ?START OF TH.*PROJECT GUTENBERG.*$", text, re.M)
    end = re.search(r"^\*\*\* ?END OF TH.*PROJECT GUTENBERG.*$", text, re.M)
    text = text[start.end() if start else 0 : end.start() if end else len(text)]
    lines = [line.rstrip() for line in text.split("\n")]
    lines = [line for line in lines if not re.fullmatch(r"\s*[═─=_*-]{5,}", line)]
    filled = [line for line in lines if line]
    if 2 * sum(line.startswith("   ") for line in filled) > len(filled):
        lines = [line.removeprefix("   ") for line in lines]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
    return re.sub(r"(?:[^\n]{1,40}\n\n){20,}", "", text)  # tables of contents


def split(text: str, share: float = 0.04) -> tuple[str, str]:
    """Training text and a held-out slice from the middle, cut at empty lines."""
    low = text.find("\n\n", int(len(text) * 0.5))
    high = text.find("\n\n", int(len(text) * (0.5 + share)))
    if low < 0 or high <= low:
        return text, ""
    return text[:low] + text[high:], text[low:high]


def chat(question: str, answer: str) -> str:
    return f"{TURN}user\n{question}{TURN_END}\n{TURN}assistant\n{answer}{TURN_END}\n"


def glossary_chats(text: str) -> list[str]:
    """Turn glossary entries (`:term: noun`, then paragraphs) into one-turn conversations."""
    entries = re.findall(r"^:([^:\n]{2,40}):[^\n]*\n\n(.+?)\n\n", text, re.M | re.S)
    return [chat(f"What is {term}?", re.sub(r"\s*\n\s*", " ", body)) for term, body in entries if len(body) < 500]


# ---- tokenizer ------------------------------------------------------------------------------------------------------


def train_tokenizer(texts: list[str], vocab: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END, TURN, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "bos_token": END,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": 1024,
        "pad_token": END,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


# ---- model ----------------------------------------------------------------------------------------------------------


def new_model(vocab: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # keep the residual stream's variance independent of the depth
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_((2 * config.num_hidden_layers) ** -0.5)
            layer.mlp.down_proj.weight.mul_((2 * config.num_hidden_layers) ** -0.5)
    return model


def add_dropout(model: LlamaForCausalLM, p: float) -> list:
    """Llama has no dropout of its own: drop parts of the embedding and of every residual branch."""

    def hook(module, _inputs, output):
        return F.dropout(output, p, module.training)

    places = [model.model.embed_tokens]
    for layer in model.model.layers:
        places += [layer.self_attn.o_proj, layer.mlp.down_proj]
    return [place.register_forward_hook(hook) for place in places]


@torch.no_grad()
def validate(model, ids: torch.Tensor, context: int) -> float:
    """Mean loss over consecutive windows of the held-out slice."""
    model.eval()
    windows = ids[: len(ids) // context * context].view(-1, context)
    total = 0.0
    for batch in windows.split(64):
        with torch.autocast(ids.device.type, torch.bfloat16):
            logits = model(batch, use_cache=False).logits
        total += F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten(), reduction="sum").item()
    model.train()
    return total / (len(windows) * (context - 1))


def train(model, train_ids, valid_ids, args) -> dict:
    """AdamW with warmup and a cosine to zero. Leaves the best checkpoint in the model."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": args.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.95),
        fused=train_ids.is_cuda,
    )
    gen = torch.Generator().manual_seed(args.seed)
    offsets = torch.arange(args.context, device=train_ids.device)
    forward = torch.compile(model) if args.compile else model
    best = {"loss": math.inf, "step": 0, "state": None}
    began = time.monotonic()
    model.train()
    for step in range(args.steps + 1):
        progress = max(step / args.steps, (time.monotonic() - began) / (60 * args.minutes))
        if step % args.eval_every == 0 or progress >= 1:
            loss = validate(model, valid_ids, args.context)
            if loss < best["loss"]:
                state = {k: v.detach().clone() for k, v in model.state_dict().items()}
                best = {"loss": loss, "step": step, "state": state}
            print(f"step {step} held-out {loss:.4f} seconds {time.monotonic() - began:.0f}", flush=True)
            if progress >= 1 or step - best["step"] > args.patience:
                break
        warmup = min(1.0, (step + 1) / args.warmup)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * warmup * 0.5 * (1 + math.cos(math.pi * progress))
        starts = torch.randint(0, len(train_ids) - args.context, (args.batch, 1), generator=gen)
        batch = train_ids[starts.to(train_ids.device) + offsets]
        with torch.autocast(train_ids.device.type, torch.bfloat16):
            logits = forward(batch, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % args.eval_every == 0:
            print(f"step {step} training {loss.item():.4f}", flush=True)
    model.load_state_dict(best.pop("state"))
    return best | {"steps": step, "tokens_seen": step * args.batch * args.context}


# ---- reference ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def write_reference(out: Path, held_out: Path | None) -> dict:
    """Record what transformers makes of the stored files, in float32 on the CPU."""
    tokenizer = AutoTokenizer.from_pretrained(out)
    plain = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()

    def encode(text: str) -> list[int]:
        ids = plain.encode(text, add_special_tokens=False).ids
        if tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
            print(f"warning: {type(tokenizer).__name__} and tokenizer.json disagree on {text[:40]!r}")
        return ids

    prompt = torch.tensor([encode(PROMPT)])
    logits = model(prompt, use_cache=False).logits.float().contiguous()
    save_file({"input_ids": prompt, "logits": logits}, out / "reference.safetensors")

    ids, margins = prompt, []
    for _ in range(32):
        top = model(ids, use_cache=False).logits[0, -1].float().topk(2)
        margins.append((top.values[0] - top.values[1]).item())
        ids = torch.cat([ids, top.indices[:1].view(1, 1)], dim=1)
    greedy = ids[0, prompt.shape[1] :].tolist()

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a hack?"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    reference = {
        "transformers": transformers.__version__,
        "prompt": PROMPT,
        "input_ids": prompt[0].tolist(),
        "greedy_ids": greedy,
        "greedy_text": tokenizer.decode(greedy),
        "greedy_smallest_margin": min(margins),
        "tokenizer": [{"text": text, "ids": encode(text)} for text in TOKENIZER_CASES],
        "chat": {"messages": messages, "text": rendered, "ids": encode(rendered)},
    }
    if held_out:
        reference["held_out"] = {"file": held_out.name, "windows": []}
        text_ids = encode(held_out.read_text(encoding="utf-8"))
        for window, count in [(512, 16), (256, 8), (128, 4)]:
            nll, scored = windowed_nll(model, text_ids, window, count)
            reference["held_out"]["windows"].append(
                {"window": window, "max_windows": count, "tokens_scored": scored, "mean_nll": nll, "ppl": math.exp(nll)}
            )
        reference["held_out"]["tokens"] = len(text_ids)
    text = json.dumps(reference, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\s\d,]*\]", lambda match: re.sub(r"\s+", " ", match[0]), text)  # a list of ids on one line
    (out / "reference.json").write_text(text + "\n", encoding="utf-8")
    return reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="UTF-8 training texts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, help="another text, only for the reference perplexities")
    parser.add_argument("--minutes", type=float, default=5.0, help="end training after so long (default %(default)s)")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--eval-every", type=int, default=250)
    parser.add_argument("--patience", type=int, default=1500, help="stop so many steps after the best checkpoint")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    args.out.mkdir(parents=True, exist_ok=True)

    texts = [clean(path.read_text(encoding="utf-8")) for path in sorted(args.text, key=lambda path: path.name)]
    pairs = [split(text) for text in texts]
    seen = [kept for kept, _ in pairs]
    chats = [one for text in seen for one in glossary_chats(text)]
    tokenizer = train_tokenizer(seen, args.vocab)
    assert tokenizer.get_vocab_size() == args.vocab
    save_tokenizer(tokenizer, args.out)

    def tokens(documents: list[str]) -> torch.Tensor:
        ids = [i for one in tokenizer.encode_batch(documents) for i in one.ids + [0]]
        return torch.tensor(ids, device=device)

    train_ids, valid_ids = tokens(seen + chats), tokens([held for _, held in pairs if held])
    model = new_model(args.vocab).to(device)
    print(
        f"{sum(map(len, texts))} characters, {len(chats)} chats, {len(train_ids)} + {len(valid_ids)} tokens, "
        f"{sum(p.numel() for p in model.parameters())} parameters on {device}",
        flush=True,
    )
    hooks = add_dropout(model, args.dropout)
    result = train(model, train_ids, valid_ids, args)
    for hook in hooks:
        hook.remove()

    model.to(torch.bfloat16)
    model.generation_config.eos_token_id = [0, 2]
    model.generation_config.bos_token_id = 0
    result["stored_loss"] = validate(model, valid_ids, args.context)
    characters = sum(len(held) for _, held in pairs)
    result["bits_per_character"] = result["stored_loss"] * len(valid_ids) / characters / math.log(2)
    model.save_pretrained(args.out)

    reference = write_reference(args.out, args.held_out)
    print(json.dumps({"options": {k: v for k, v in vars(args).items() if k != "text"}} | result, default=str))
    print(json.dumps({"greedy": reference["greedy_text"], "held_out": reference.get("held_out")}))


if __name__ == "__main__":
    main()
