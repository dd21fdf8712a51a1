"""Tokens per second of a training step, beside Hugging Face's GPT-2 and Llama classes of the same size.

All take the same batches, loss, clipping and fused AdamW, and take turns, so that a busy machine slows all alike;
medians over the turns. Writes benchmarks/results/train_cpu.json. Needs the extra `dev` (transformers).
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers

import onehop
from onehop.config import ModelConfig
from onehop.config.recipe import TrainConfig
from onehop.data.loader import Batch
from onehop.training.optimizer import make_optimizer
from onehop.training.setup import pick_product
from onehop.training.step import training_step

LAYERS, HEADS, WIDTH, CONTEXT, ROWS, VOCABULARY = 6, 6, 384, 256, 16, 65
TRAIN = TrainConfig(steps=10**6, batch_size=ROWS, lr=1e-3, warmup=100)
PRECISIONS = {"float32": torch.float32, "bfloat16 autocast": torch.bfloat16}
Step = Callable[[Batch, torch.dtype], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant, of one step each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    contestants = {"onehop": ours(), "transformers GPT2LMHeadModel": gpt2(), "transformers LlamaForCausalLM": llama()}
    found = {name: measured(contestants, dtype, rounds=asked.rounds) for name, dtype in PRECISIONS.items()}
    shape = {"layers": LAYERS, "heads": HEADS, "width": WIDTH, "context": CONTEXT, "rows": ROWS, "vocab": VOCABULARY}
    result = {"shape": shape, "rounds": asked.rounds, "machine": machine(), "tokens_per_second": found}
    target = Path(__file__).parent / "results" / "train_cpu.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    for precision, rates in found.items():
        best = max(rate for name, rate in rates.items() if name != "onehop")
        print(precision, *(f"{name} {rate:.0f}" for name, rate in rates.items()), sep=", ")
        print(f"  onehop against the better of the others: {rates['onehop'] / best:.2f} x")


def measured(contestants: dict[str, Step], dtype: torch.dtype, *, rounds: int) -> dict[str, float]:
    """Tokens per second of each contestant: the median of its turns, the first of which does not count."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, step in contestants.items():
            rows = batch(number)
            began = time.perf_counter()
            step(rows, dtype)
            times[name].append(time.perf_counter() - began)
    return {name: round(ROWS * CONTEXT / statistics.median(taken[1:]), 1) for name, taken in times.items()}


def batch(seed: int) -> Batch:
    """Random rows: what stands in them does not change the time."""
    tokens = torch.randint(VOCABULARY, (ROWS, CONTEXT + 1), generator=torch.Generator().manual_seed(seed))
    return Batch(
        tokens[:, :-1].contiguous(),
        tokens[:, 1:].contiguous(),
        doc=torch.zeros(ROWS, CONTEXT, dtype=torch.int32),
        at=torch.arange(CONTEXT).expand(ROWS, CONTEXT),
        n_targets=ROWS * CONTEXT,
        packed=False,
        padded=False,
    )


def ours() -> Step:
    """A SwiGLU model, as Llama's, trained by the step that `onehop train` takes."""
    config = ModelConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        n_layers=LAYERS,
        max_len=CONTEXT,
        attention={"n_heads": HEADS},
        ffn={"kind": "gated", "d_ff": 8 * WIDTH // 3},
    )
    model = onehop.build(config).train()
    pick_product(model, torch.device("cpu"))
    optimizer = make_optimizer(model, TRAIN)

    def step(rows: Batch, dtype: torch.dtype) -> None:
        training_step(model, optimizer, [rows], index=0, cfg=TRAIN, precision=dtype)

    return step


def gpt2() -> Step:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        bos_token_id=0,
        eos_token_id=0,
        n_positions=CONTEXT,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return theirs(transformers.GPT2LMHeadModel(config))


def llama() -> Step:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=8 * WIDTH // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return theirs(transformers.LlamaForCausalLM(config))


def theirs(model: torch.nn.Module) -> Step:
    """The same step around a model of transformers, with its default attention (SDPA)."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=TRAIN.lr, betas=TRAIN.betas, weight_decay=0.1, fused=True)

    def step(rows: Batch, dtype: torch.dtype) -> None:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            logits = model(input_ids=rows.tokens).logits
            loss = F.cross_entropy(logits.flatten(0, 1).float(), rows.targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def machine() -> dict[str, str | int]:
    """What this was measured on."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "amx": bool(torch.cpu._is_amx_tile_supported()),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "onehop": onehop.__version__,
    }


if __name__ == "__main__":
    main()
