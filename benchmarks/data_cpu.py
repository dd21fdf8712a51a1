"""Tokens per second from a file to shards against bare `tokenizers.encode_batch`, in one interleaved run.

The text is of a built-in corpus, written to one file of JSON lines, so that reading and parsing count. Bare: the texts
are in memory, `encode_batch` and `encode_batch_fast` are called on as many of them at once as onehop hands over, and
the ids are taken out as lists; nothing is written. onehop: the file is read, split, encoded, and written as shards
(`data.shards.write_shards`), or turned into packed batches while training would go on (`data.stream`). Rounds are
interleaved; figures are medians, with the lowest and highest. Results go to benchmarks/results/data_cpu.json with
--save.

python benchmarks/data_cpu.py [--megabytes 20] [--vocab 8192] [--rounds 5] [--corpus python-stdlib] [--save]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from itertools import accumulate
from pathlib import Path

import tokenizers

from onehop.data import live, shards
from onehop.data.live import Live
from onehop.data.loader import Loader
from onehop.data.shards import write_shards
from onehop.data.sources import Place, open_source
from onehop.data.split import Split
from onehop.machine.here import processor
from onehop.text.bpe import train_bpe


def texts_of(corpus, megabytes):
    """Documents of a built-in corpus, again and again from its beginning (each time marked), up to a size."""
    found, size, n = [], 0, 0
    while size < megabytes * 1e6:
        for text in open_source(corpus=corpus, n_documents=20_000 if corpus == "fables" else None, seed=n):
            found.append(f"{text}\n# {n}")
            size += len(text)
        n += 1
    kept = accumulate(map(len, found))
    return [text for text, end in zip(found, kept, strict=True) if end <= megabytes * 1e6]


def groups_of(texts):
    """As many texts at once as onehop encodes together."""
    return [[text for text, _ in group] for group in shards._groups((text, None) for text in texts)]


def bare(backend, groups, *, fast):
    call = backend.encode_batch_fast if fast else backend.encode_batch
    return sum(len(found.ids) for group in groups for found in call(group, add_special_tokens=False))


def stored(file, tokenizer):
    """From the file to shards on disk."""
    source = open_source(files=[file])
    split = Split(0.05, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder), split.apply(source), tokenizer)
        about = [json.loads((Path(folder) / f"{side}.json").read_text()) for side in shards.SIDES]
    return sum(side["n_tokens"] for side in about)


def streamed(file, tokenizer, *, length=1024, batch_size=8):
    """From the file to batches, once through the text; the beginning of the next epoch is made meanwhile too."""
    with tempfile.TemporaryDirectory() as folder:
        text = Live(open_source(files=[file]), Split(0.05, seed=0), 0, tokenizer, Path(folder))
        loader = Loader(text, batch_size=batch_size, length=length)
        n_tokens, number, end = 0, 0, None
        while end is None or number * batch_size < end:
            n_tokens += int((loader.batch(number).doc >= 0).sum())
            number += 1
            places = loader.rows._places[1:]
            end = loader.rows._begins[places.index(Place()) + 1] if Place() in places else None
        return n_tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--corpus", default="python-stdlib")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    live.WINDOW = 1 << 20  # several windows of a small text
    texts = texts_of(given.corpus, given.megabytes)
    tokenizer = train_bpe(texts[: len(texts) // 4 + 1], vocab_size=given.vocab)
    groups = groups_of(texts)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.jsonl"
        file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        ways = {
            "encode_batch": lambda: bare(tokenizer.backend, groups, fast=False),
            "encode_batch_fast": lambda: bare(tokenizer.backend, groups, fast=True),
            "onehop, stored": lambda: stored(file, tokenizer),
            "onehop, streamed": lambda: streamed(file, tokenizer),
        }
        rates = {name: [] for name in ways}
        for _ in range(given.rounds):
            for name, run in ways.items():
                began = time.perf_counter()
                n_tokens = run()
                rates[name].append(n_tokens / (time.perf_counter() - began))
    base = statistics.median(rates["encode_batch"])
    rows = {
        name: {
            "tokens_per_s": round(statistics.median(found)),
            "lowest": round(min(found)),
            "highest": round(max(found)),
            "of_encode_batch": round(statistics.median(found) / base, 3),
        }
        for name, found in rates.items()
    }
    result = {
        "corpus": given.corpus, "megabytes": given.megabytes, "vocab_size": given.vocab, "rounds": given.rounds,
        "cores": os.cpu_count(), "processor": processor(),
        "tokenizers": tokenizers.__version__, "rates": rows,
    }  # fmt: skip
    print(json.dumps(result, indent=2))
    if given.save:
        (Path(__file__).parent / "results" / "data_cpu.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
