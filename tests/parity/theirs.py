"""Random models of transformers, their weights spread widely so that a wrong detail shows; the old age of config."""

import json
import math
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

V = 97
BASE: dict[str, Any] = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
AUTO = {
    "causal": transformers.AutoModelForCausalLM,
    "seq2seq": transformers.AutoModelForSeq2SeqLM,
    "masked": transformers.AutoModelForMaskedLM,
}


@dataclass(frozen=True)
class Case:
    """One random model: config.json's model_type and the keys that differ from BASE (or all, with base=False)."""

    model_type: str
    keys: dict[str, Any] = field(default_factory=dict)
    base: bool = True
    kind: Literal["causal", "seq2seq", "masked"] = "causal"
    dtype: torch.dtype = torch.float64
    attention: str = "eager"  # which of their kernels
    old_keys: dict[str, str] = field(default_factory=dict)  # what the old age called rope_theta and its like
    seed: int = 0

    def build(self):
        """Their model, in float64 unless the case says otherwise, with plain attention and plain experts."""
        torch.manual_seed(self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = transformers.AutoConfig.for_model(self.model_type, **{**(BASE if self.base else {}), **self.keys})
            model = AUTO[self.kind].from_config(config, attn_implementation=self.attention).to(self.dtype).eval()
        plain_experts(model)
        generator = torch.Generator().manual_seed(self.seed + 1)
        with torch.no_grad():
            for p in [*model.parameters(), *(b for name, b in model.named_buffers() if name == "final_logits_bias")]:
                if isinstance(p, torch.nn.Parameter) and not p.requires_grad:
                    continue  # a table of waves, which no file holds
                scale = 0.2 if p.dim() < 2 else 0.35 / math.sqrt(max(1, p.shape[-1] / 16))
                p.add_(scale * torch.randn(p.shape, generator=generator, dtype=p.dtype))
        model.tie_weights()
        return model

    def reopen(self, folder):
        """The model in a folder, as theirs."""
        model = AUTO[self.kind].from_pretrained(folder, dtype=self.dtype, attn_implementation=self.attention).eval()
        plain_experts(model)
        return model

    def logits(self, model, x, t):
        """What their model answers, (B, T, V)."""
        with torch.no_grad():
            return model(input_ids=x, decoder_input_ids=t).logits if self.kind == "seq2seq" else model(x).logits


def plain_experts(model):
    """The grouped kernels refuse float64."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")


def tokens(length=40, seed=7, rows=2):
    return torch.randint(3, V, (rows, length), generator=torch.Generator().manual_seed(seed))


def old_style(folder, case):
    """Rewrite config.json as files carried it for years; False where there is nothing to rewrite."""
    file = folder / "config.json"
    raw = json.loads(file.read_text())
    table = raw.pop("rope_parameters", None)
    if not isinstance(table, dict) or "rope_theta" not in table:
        return False
    values = {"rope_theta": table.pop("rope_theta"), "partial_rotary_factor": table.pop("partial_rotary_factor", None)}
    raw.update({case.old_keys.get(key, key): value for key, value in values.items() if value is not None})
    kind = table.pop("rope_type", "default")
    if kind != "default":
        raw["rope_scaling"] = {"type" if kind in ("linear", "dynamic") else "rope_type": kind, **table}
    raw["torch_dtype"] = raw.pop("dtype", "float32")
    file.write_text(json.dumps(raw))
    return True
