"""A part of your own: a position scheme that lowers scores by the logarithm of the distance, at learned rates.

A recipe names this file in model.parts. A position scheme that biases scores runs in every kernel; a rule that changes
scores in another way (onehop.part("score", …)) runs in the plain kernel only, and `onehop verify` says so.
"""

import sys

import torch
from torch import Tensor, nn

import onehop
from onehop.config import AttentionConfig, PositionConfig
from onehop.lm.verify import verify
from onehop.parts import PositionScheme


class LogDistanceConfig(PositionConfig):
    """Scores fall by rate · log(1 + distance)."""

    kind: str = "log-distance"
    rate: float = 1.0  # of the first head; each further one has half of the one before


@onehop.part("position", LogDistanceConfig)
class LogDistance(PositionScheme):
    """-rate · log(1 + |i - j|) for each head: positions (B | 1, T), (B | 1, S) -> (B | 1, H, T, S)."""

    biases = True

    def __init__(self, cfg: LogDistanceConfig, attention: AttentionConfig):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor([cfg.rate / 2**h for h in range(attention.n_heads)]))

    def forward(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        distance = (q_at.unsqueeze(-1) - k_at.unsqueeze(-2)).abs().to(self.rate.dtype)  # (B, T, S)
        return -self.rate.view(-1, 1, 1) * torch.log1p(distance).unsqueeze(1)


def main(out: str = "out/own-part") -> None:
    """Train with it, tell with it, and check it."""
    keys = {"model.parts": [__file__], "model.attention.position": "log-distance", "train.steps": 20, "out": out}
    run = onehop.train("tiny", keys, fresh=True)
    rates = run.model.layers[0].attention.position.rate.tolist()
    print(f"validation loss {run.val_loss:.3f}, rates {', '.join(f'{rate:.2f}' for rate in rates)}")

    lm = onehop.load(run.out, parts=[__file__])
    print(lm.generate("Once", max_new_tokens=20, temperature=0.0)[0].text)
    for check in verify(lm):  # kernels, caches, batches: each against the plain definition
        print("passed" if check.passed else "not passed" if check.passed is False else "no", check.name, check.note)


if __name__ == "__main__":
    main(*sys.argv[1:])
