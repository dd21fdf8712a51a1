"""Width transfer: at the base width nothing changes; elsewhere rates, decay, start and logits follow the table."""

import math

import pytest
import torch

from onehop.base.errors import ConfigError
from onehop.training import Trainer
from onehop.training.roles import roles
from tests.training.small_runs import recipe

WIDE = {"d_model": 64, "attention": {"n_heads": 8}, "ffn": {"kind": "gated", "d_ff": 96}}


def test_at_the_base_width_nothing_changes(tmp_path):
    found = []
    for base in (None, 16):
        trainer = Trainer(recipe(tmp_path, width_transfer=base), fresh=True)
        found.append([result.loss for result in trainer.steps()])
    assert found[0] == found[1]


def test_four_times_as_wide(tmp_path):
    """Matrices: start half as large, a quarter of the rate, four times the decay; logits by four. No other changes."""
    plain, wide = (Trainer(recipe(tmp_path, model=WIDE, width_transfer=n), fresh=True) for n in (None, 16))
    by_name = roles(wide.model)
    for name, p in wide.model.named_parameters():
        factor = 0.5 if by_name[name] == "matrices" else 1.0
        assert torch.equal(p, factor * plain.model.get_parameter(name)), name
    names = {id(p): by_name[name] for name, p in wide.model.named_parameters()}
    for group in wide.optimizer.param_groups:
        for p in group["params"]:
            matrix, decays = names[id(p)] == "matrices", names[id(p)] in ("matrices", "embeddings", "head")
            assert group["lr_share"] == (0.25 if matrix else 1.0)
            assert group["weight_decay"] == (0.4 if matrix else 0.1 if decays else 0.0)
    result = next(wide.steps())
    assert {round(g["lr"] / result.lr, 9) for g in wide.optimizer.param_groups} == {0.25, 1.0}
    assert wide.model.config.head.scale == 0.25
    assert wide.recipe.model.head.scale == 1.0  # the recipe stays what was asked for, so that it can be run again
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(wide.model.head(hidden), hidden @ wide.model.head.projection.weight.t() / 4)


def test_one_step_moves_the_logits_alike_at_every_width(tmp_path):
    """What the rules are for (section 5 of the paper); without them the same step moves them more and more."""
    moved = {}
    for base in (None, 16):
        for width in (16, 256):
            shape = {
                "d_model": width,
                "attention": {"n_heads": width // 8},
                "ffn": {"kind": "gated", "d_ff": 2 * width},
            }
            options = {"width_transfer": base, "lr": 3e-2, "warmup": 0, "steps": 2, "clip": None}
            trainer = Trainer(recipe(tmp_path, model=shape, **options), fresh=True)
            batch = trainer.loader.batch(0)
            before = trainer.model(batch.tokens)
            next(trainer.steps())
            with torch.no_grad():
                moved[base, width] = float((trainer.model(batch.tokens) - before).square().mean().sqrt())
    assert abs(math.log2(moved[16, 256] / moved[16, 16])) < 1
    assert math.log2(moved[None, 256] / moved[None, 16]) > 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"optimizer": "muon"}, "width_transfer=16 follows the rules of AdamW's steps"),
        ({"model": {"embed": {"width": 8}}}, "model.embed.width has one that does not"),
    ],
)
def test_where_the_rules_do_not_hold_they_are_refused(tmp_path, options, text):
    with pytest.raises(ConfigError) as refused:
        recipe(tmp_path, width_transfer=16, **options)
    assert text in str(refused.value)
