"""Tokens per second of a training step on a CPU, beside other libraries' models of the same size.

All take the same batches, loss, clipping and fused AdamW, each in a process of its own, as its users have it, and take
turns, so that a busy machine slows all alike; medians over the turns; in 16 bits too where the processor has them.
onehop builds two models: one of GPT-2's parts, beside Hugging Face's GPT-2 class and `plain` (nanoGPT's arithmetic,
written down once more: a GPT-2 block of F.linear, F.layer_norm and SDPA); one of Llama's, beside Hugging Face's Llama
class and, where they are installed, LitGPT and x-transformers. Where there is a C++ compiler, both of ours, `plain` and
LitGPT run through torch.compile too: ours as `train.compile` does, LitGPT's as its own pretraining does.
Writes benchmarks/results/train_cpu.json. Needs the
extra `dev` (transformers).

python benchmarks/train_cpu.py [--sizes small,middle,large] [--rounds 7] [--threads 2]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import onehop
from onehop.config import ModelConfig
from onehop.config.recipe import TrainConfig
from onehop.cost.flops import TRAINING
from onehop.cost.planned import Plan
from onehop.data.loader import Batch
from onehop.machine.heap import keeping_freed_memory
from onehop.machine.here import processor
from onehop.model.compiler import no_compiler
from onehop.training.compiled import Compiled
from onehop.training.loss import batch_loss
from onehop.training.optimizer import make_optimizer
from onehop.training.setup import has_native_bf16, pick_product
from onehop.training.speed import measure_peak
from onehop.training.step import training_step


@dataclass(frozen=True)
class Size:
    """The shape of a model and of a batch."""

    layers: int
    heads: int
    width: int
    context: int
    rows: int
    vocab: int = 65


SIZES = {
    "small": Size(4, 4, 128, 64, 12),
    "middle": Size(6, 6, 384, 256, 16),
    "large": Size(12, 12, 768, 512, 4, 32000),
}
HALF = "bfloat16 autocast"
PRECISIONS = {"float32": torch.float32} | ({HALF: torch.bfloat16} if has_native_bf16(torch.device("cpu")) else {})
BETAS, DECAY = (0.9, 0.95), 0.1
Step = Callable[[Batch, torch.dtype], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="small,middle,large")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "train_cpu.json")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found = {name: of_size(name, asked.rounds) for name in asked.sizes.split(",")}
    asked.out.write_text(json.dumps({"rounds": asked.rounds, "machine": machine(), "sizes": found}, indent=2) + "\n")


def of_size(name: str, rounds: int) -> dict:
    """Tokens per second in each precision; how far onehop is ahead of those of the same parts, and of plain float32."""
    size = SIZES[name]
    able = no_compiler(torch.device("cpu")) is None
    there = {who: build for who, (build, needs) in CONTESTANTS.items() if needs is None or find_spec(needs)}
    contestants = [who for who in there if able or not who.endswith(COMPILED)]
    times = measured(contestants, name, rounds=rounds)
    found: dict = {"shape": vars(size)}
    for precision, dtype in PRECISIONS.items():
        rates = {who: size.rows * size.context / statistics.median(times[who, precision]) for who in contestants}
        ahead = {
            who: {other: ahead_of(times, (who, precision), (other, precision)) for other in others if other in rates}
            for who, others in OURS.items()
            if who in rates
        }
        found[precision] = {"tokens_per_second": {who: round(rate, 1) for who, rate in rates.items()}, "ahead": ahead}
        found[precision] |= shares(size, dtype, {who: rates[who] for who in ahead})
        print(name, precision, *(f"{who} {rate:.0f}" for who, rate in rates.items()), sep=", ")
        for who, others in ahead.items():
            print(f"  {who} over", *(f"{other} {ratio:.2f}" for other, ratio in others.items()), flush=True)
    if HALF in PRECISIONS:
        found["16 bits over plain float32"] = {who: ahead_of(times, (who, HALF), ("plain", "float32")) for who in ahead}
        print("  16 bits over plain float32:", found["16 bits over plain float32"])
    return found


def shares(size: Size, dtype: torch.dtype, rates: dict[str, float]) -> dict:
    """FLOP/s of the largest products that this machine was measured to reach, and onehop's share of them (MFU)."""
    peak = measure_peak(torch.device("cpu"), dtype)
    assert peak is not None, "a CPU has a clock"
    flops = {who: TRAINING * Plan(SHAPES[who](size)).flops(new=size.context).seen / size.context for who in rates}
    mfu = {who: round(flops[who] * rate / peak.flops_per_s, 3) for who, rate in rates.items()}
    return {"peak_flops_per_second": round(peak.flops_per_s), "share_of_peak": mfu}


def ahead_of(times: dict, one: tuple[str, str], other: tuple[str, str]) -> float:
    """The median, over the rounds, of the other's time over the one's."""
    return round(statistics.median(b / a for a, b in zip(times[one], times[other], strict=True)), 2)


def measured(contestants: list[str], size: str, *, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Seconds per step of each contestant in each precision, round by round."""
    times: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        workers = {who: stack.enter_context(worker(who, size)) for who in contestants}
        for number in range(rounds + 1):  # the first round does not count
            for precision in PRECISIONS:
                for who, pipe in workers.items():
                    pipe.send((number, precision))
                    times.setdefault((who, precision), []).append(pipe.recv())
    return {key: values[1:] for key, values in times.items()}


@contextmanager
def worker(who: str, size: str) -> Iterator[Connection]:
    """A process in which one contestant waits for its turns."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(who, size, torch.get_num_threads(), theirs), daemon=True)
    process.start()
    theirs.close()  # its copy is the process's own: who ends too early is missed by `recv`
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def work(who: str, name: str, threads: int, pipe: Connection) -> None:
    """Take turns: a round and a precision come in, seconds per step go out."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    size = SIZES[name]
    step = CONTESTANTS[who][0](size)
    steps = max(1, 6000 // (size.rows * size.context))  # a turn of one short step would be noise
    with keeping_freed_memory(who in OURS):  # as a run of onehop's does
        while True:
            number, precision = pipe.recv()
            rows, dtype = batch(number, size), PRECISIONS[precision]
            began = time.perf_counter()
            for _ in range(steps):
                step(rows, dtype)
            pipe.send((time.perf_counter() - began) / steps)


def batch(seed: int, size: Size) -> Batch:
    """Random rows: what stands in them does not change the time."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(size.vocab, (size.rows, size.context + 1), generator=generator)
    return Batch(
        tokens[:, :-1].contiguous(),
        tokens[:, 1:].contiguous(),
        doc=torch.zeros(size.rows, size.context, dtype=torch.int32),
        at=torch.arange(size.context).expand(size.rows, size.context),
        n_targets=size.rows * size.context,
        packed=False,
        padded=False,
    )


def gpt2_parts(size: Size) -> ModelConfig:
    """GPT-2's parts: LayerNorm, learned positions, GELU."""
    return shaped(
        size,
        norm={"kind": "layer", "bias": False},
        final_norm={"kind": "layer", "bias": False},
        embed={"position": "learned"},
        attention={"n_heads": size.heads, "position": {"kind": "none"}},
        ffn={"kind": "plain", "d_ff": 4 * size.width, "activation": "gelu"},
    )


def llama_parts(size: Size) -> ModelConfig:
    """Llama's parts: RMSNorm, rotary positions, SwiGLU."""
    return shaped(size, attention={"n_heads": size.heads}, ffn={"kind": "gated", "d_ff": 8 * size.width // 3})


def shaped(size: Size, **parts: object) -> ModelConfig:
    return ModelConfig(vocab_size=size.vocab, d_model=size.width, n_layers=size.layers, max_len=size.context, **parts)


def ours(config: ModelConfig, size: Size, *, compiled: bool = False) -> Step:
    """A model trained by the step that `onehop train` takes; compiled: by `train.compile`."""
    cfg = TrainConfig(steps=10**6, batch_size=size.rows, lr=1e-3, warmup=100, betas=BETAS, weight_decay=DECAY)
    model = onehop.build(config).train()
    pick_product(model, torch.device("cpu"))
    optimizer = make_optimizer(model, cfg)
    loss_of = Compiled(batch_loss, note=lambda line: None, say=print) if compiled else batch_loss

    def step(rows: Batch, dtype: torch.dtype) -> None:
        training_step(model, optimizer, [rows], index=0, cfg=cfg, precision=dtype, loss_of=loss_of)

    return step


class PlainBlock(nn.Module):
    """GPT-2's block (Radford et al. 2019), as nanoGPT computes it."""

    def __init__(self, size: Size):
        super().__init__()
        c = size.width
        self.heads = size.heads
        self.norms = nn.ModuleList([nn.LayerNorm(c, bias=False) for _ in range(2)])
        self.qkv, self.out = nn.Linear(c, 3 * c, bias=False), nn.Linear(c, c, bias=False)
        self.up, self.down = nn.Linear(c, 4 * c, bias=False), nn.Linear(4 * c, c, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
        y = F.scaled_dot_product_attention(*heads, is_causal=True)  # (B, H, T, D)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Plain(nn.Module):
    """GPT-2: token and position embeddings, blocks, a norm, the head tied to the tokens."""

    def __init__(self, size: Size):
        super().__init__()
        self.tokens, self.places = nn.Embedding(size.vocab, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*(PlainBlock(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * size.layers) ** 0.5 if last else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1)))
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def plain(size: Size, *, compiled: bool = False) -> Step:
    """The block above and its loss; compiled both together, as nanoGPT's forward holds the loss."""
    return theirs(Plain(size), whole_graph=compiled)


def gpt2(size: Size) -> Step:
    config = transformers.GPT2Config(
        vocab_size=size.vocab,
        bos_token_id=0,
        eos_token_id=0,
        n_positions=size.context,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model = transformers.GPT2LMHeadModel(config)
    return theirs(model, lambda tokens: model(input_ids=tokens).logits)


def llama(size: Size) -> Step:
    config = transformers.LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.width,
        intermediate_size=8 * size.width // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config)
    return theirs(model, lambda tokens: model(input_ids=tokens).logits)


def litgpt(size: Size, *, compiled: bool = False) -> Step:
    """LitGPT's model with Llama's parts, its head tied as in the others; compiled without the loss, as it does."""
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        block_size=size.context,
        vocab_size=size.vocab,
        padded_vocab_size=size.vocab,
        n_layer=size.layers,
        n_head=size.heads,
        n_embd=size.width,
        rotary_percentage=1.0,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=8 * size.width // 3,
        parallel_residual=False,
    )
    model = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    return theirs(model, torch.compile(model, dynamic=False) if compiled else model)


def x_transformers(size: Size) -> Step:
    """x-transformers' decoder with rotary positions, RMSNorm and SwiGLU, its flash attention on."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=size.width,
        depth=size.layers,
        heads=size.heads,
        attn_dim_head=size.width // size.heads,
        attn_flash=True,
        rotary_pos_emb=True,
        use_rmsnorm=True,
        ff_swish=True,
        ff_glu=True,
        ff_no_bias=True,
        ff_mult=8 / 3,
    )
    model = TransformerWrapper(
        num_tokens=size.vocab, max_seq_len=size.context, use_abs_pos_emb=False, tie_embedding=True, attn_layers=layers
    )
    return theirs(model)


COMPILED = ", compiled"
GPT2, LLAMA = "onehop, GPT-2's parts", "onehop, Llama's parts"
ON_GPT2, ON_LLAMA = ("plain", "GPT2LMHeadModel"), ("LlamaForCausalLM", "LitGPT", "x-transformers")
OURS = {  # and beside whom they are put: each with those of its own parts
    GPT2: ON_GPT2,
    GPT2 + COMPILED: (*ON_GPT2, "plain" + COMPILED),
    LLAMA: ON_LLAMA,
    LLAMA + COMPILED: (*ON_LLAMA, "LitGPT" + COMPILED),
}
SHAPES = {who: gpt2_parts if who.startswith(GPT2) else llama_parts for who in OURS}
CONTESTANTS: dict[str, tuple[Callable[[Size], Step], str | None]] = {
    GPT2: (lambda size: ours(gpt2_parts(size), size), None),
    LLAMA: (lambda size: ours(llama_parts(size), size), None),
    "plain": (plain, None),
    "GPT2LMHeadModel": (gpt2, None),
    "LlamaForCausalLM": (llama, None),
    "LitGPT": (litgpt, "litgpt"),
    "x-transformers": (x_transformers, "x_transformers"),
    GPT2 + COMPILED: (lambda size: ours(gpt2_parts(size), size, compiled=True), None),
    LLAMA + COMPILED: (lambda size: ours(llama_parts(size), size, compiled=True), None),
    "plain" + COMPILED: (lambda size: plain(size, compiled=True), None),
    "LitGPT" + COMPILED: (lambda size: litgpt(size, compiled=True), "litgpt"),
}


def theirs(model: nn.Module, logits_of: Callable[[Tensor], Tensor] | None = None, *, whole_graph: bool = False) -> Step:
    """The same step around another model; whole_graph: forward pass and loss through the compiler."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=BETAS, weight_decay=DECAY, fused=True)
    logits = model if logits_of is None else logits_of  # a compiled model has no truth value

    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits(tokens).flatten(0, 1).float(), targets.flatten())

    computed = torch.compile(loss_of, dynamic=False) if whole_graph else loss_of

    def step(rows: Batch, dtype: torch.dtype) -> None:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            loss = computed(rows.tokens, rows.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def machine() -> dict[str, str | int]:
    """What this was measured on."""
    return {
        "cpu": processor(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "amx": bool(torch.cpu._is_amx_tile_supported()),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "onehop-lm", "litgpt", "x-transformers")},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
