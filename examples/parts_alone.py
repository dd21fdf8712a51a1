"""Parts of onehop without onehop's training: single classes, a plain function, and a model as an ordinary nn.Module."""

import torch
import torch.nn.functional as F

import onehop
from onehop.config import AttentionConfig, GatedConfig, RMSNormConfig, RopeConfig
from onehop.parts import GatedFFN, GroupedQueryAttention, Places, RMSNorm, Rope, Step


def single_parts() -> None:
    """The textbook's block by hand: h = x + Attention(Norm(x)); y = h + FFN(Norm(h))."""
    attention_config = AttentionConfig(n_heads=4, n_kv_heads=2, d_head=16)
    attention = GroupedQueryAttention(64, attention_config, position=Rope(RopeConfig(), d_head=16))
    norm, ffn = RMSNorm(64, RMSNormConfig()), GatedFFN(64, GatedConfig(d_ff=128))
    x = torch.randn(2, 10, 64)  # (B, T, C)
    step = Step(Places.run(0, 10))  # ten tokens in a row, from position 0 on
    h = x + attention(norm(x), step)
    y = h + ffn(norm(h))[0]
    print("a block:", tuple(y.shape))


def plain_function() -> None:
    """Attention with a mask of your own: every token sees itself and the first one."""
    q, k, v = (torch.randn(1, 5, 4, 16) for _ in range(3))  # (B, T, H, D)
    mask = torch.eye(5, dtype=torch.bool)
    mask[:, 0] = True
    print("attention:", tuple(onehop.attend(q, k, v, mask).shape))


def whole_model() -> None:
    """A model in a loop that knows nothing of onehop."""
    config = onehop.ModelConfig(
        vocab_size=50, d_model=32, n_layers=2, max_len=64, attention={"n_heads": 4}, ffn={"kind": "gated", "d_ff": 64}
    )
    model = onehop.build(config, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.arange(33).repeat(4, 1) % 11  # counts to ten, again and again
    for _ in range(30):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"a whole model: loss {loss:.3f} after 30 steps")


if __name__ == "__main__":
    single_parts()
    plain_function()
    whole_model()
