"""A run that takes a second: a hundred made-up sentences, and a model of some thousand numbers."""

import random

from onehop.config import Recipe

WHO, DOES, WHAT = ("a fox", "the hen", "one crow"), ("sees", "hides", "eats"), ("a nut", "the corn", "some cheese")


def sentences(n=100, seed=0):
    """Sentences of three parts, one a line."""
    draw = random.Random(seed)
    return "\n".join(f"{draw.choice(WHO)} {draw.choice(DOES)} {draw.choice(WHAT)}." for _ in range(n))


def recipe(folder, *, model=None, data=None, text=None, **train):
    """A recipe whose text and result lie in `folder`."""
    file = folder / "text.txt"
    if not file.exists():
        file.write_text(sentences() if text is None else text)
    return Recipe(
        out=str(folder / "out"),
        model={
            "d_model": 16, "n_layers": 2, "max_len": 32, "attention": {"n_heads": 2},
            "ffn": {"kind": "gated", "d_ff": 24}, **(model or {}),
        },
        data={"files": [str(file)], "separator": "\n", "tokenizer": "bpe", "vocab_size": 280, **(data or {})},
        train={
            "steps": 6, "batch_size": 4, "lr": 1e-2, "warmup": 2, "eval_every": 3, "eval_rows": 4, "log_every": 2,
            "sample_tokens": 8, "device": "cpu", "precision": "float32", "measure_peak": False, **train,
        },
    )  # fmt: skip
