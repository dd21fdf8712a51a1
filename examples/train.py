"""Train by a recipe from Python: the same as `onehop train tiny train.steps=20 …`, with the result in hand."""

import sys

from rich.console import Console

import onehop


def main(out: str = "out/example") -> None:
    """Train, tell, and train on."""
    run = onehop.train("tiny", {"train.steps": 20, "train.eval_every": 10, "out": out}, fresh=True, console=Console())
    print(f"step {run.step}, validation loss {run.val_loss:.3f}, the best possible one {run.best_possible:.3f}")

    lm = onehop.load(run.out)  # as any other model: generate, stream, score, save as another format
    print(lm.generate("Once", max_new_tokens=20, temperature=0.8, seed=1)[0].text)

    more = onehop.train("tiny", {"train.steps": 30, "out": out}, resume=True)  # goes on where it stopped
    print(f"step {more.step}, validation loss {more.val_loss:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
