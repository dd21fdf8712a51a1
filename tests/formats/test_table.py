"""Names are generated from the table and the config; every mismatch with a file is named, in both directions."""

import pytest

from onehop.base.errors import CheckpointError
from onehop.config import ModelConfig
from onehop.formats.table import Claim, Drop, Move, Site, Twin, claims, match, rows
from tests.small_models import decoder, encoder_decoder, two_kinds_of_layer


def windowed(site):
    return site.block.attention.window is not None


def widths(site):
    a = site.block.attention
    return (a.n_heads * a.d_head, a.n_kv_heads * a.d_head, a.n_kv_heads * a.d_head)


TABLE = (
    Move("wte", "embed.tokens.weight"),
    Move("h.{i}.mark", "layers.{i}.mark", when=windowed),
    Move("h.{i}.qkv", ("layers.{i}.wq", "layers.{i}.wk", "layers.{i}.wv"), rows(widths)),
    Twin("lm_head", of="wte", when=lambda site: site.config.head.tied),
    Drop("h.{i}.attn.masked_bias", "a mask"),
)
NAMES = {"wte", "h.0.mark", "h.2.mark", "h.0.qkv", "h.1.qkv", "h.2.qkv", "h.3.qkv"}


def test_rows_run_over_the_layers_for_which_they_hold():
    found = list(claims(TABLE, two_kinds_of_layer()))
    assert [claim.theirs[0] for claim in found] == [
        "wte", "h.0.mark", "h.2.mark", "h.0.qkv", "h.1.qkv", "h.2.qkv", "h.3.qkv",
    ]  # fmt: skip
    assert found[3] == Claim(("h.0.qkv",), ("layers.0.wq", "layers.0.wk", "layers.0.wv"), "rows", (16, 4, 4))


def test_a_row_of_an_encoder_runs_over_the_encoders_layers():
    table = (Move("enc.{i}.w", "encoder.layers.{i}.w"), Move("dec.{i}.w", "layers.{i}.w"))
    config = ModelConfig.model_validate(
        {**dict(encoder_decoder()), "encoder": {**dict(encoder_decoder().encoder), "n_layers": 3}}
    )
    assert sum(claim.theirs[0].startswith("enc") for claim in claims(table, config)) == 3
    assert sum(claim.theirs[0].startswith("dec") for claim in claims(table, config)) == 2
    assert not list(claims(table[:1], decoder()))


def test_a_row_of_heads_takes_all_of_them():
    table = (Move("h.{i}.q.{q}", "layers.{i}.q"), Move("h.{i}.k.{k}", "layers.{i}.k"))
    found = {claim.ours[0]: claim.theirs for claim in claims(table, decoder())}
    assert found["layers.1.q"] == ("h.1.q.0", "h.1.q.1", "h.1.q.2", "h.1.q.3")
    assert found["layers.0.k"] == ("h.0.k.0", "h.0.k.1")


def test_what_a_file_holds_is_claimed_paired_or_dropped_with_its_reason():
    found = match(TABLE, two_kinds_of_layer(), NAMES | {"lm_head", "h.11.attn.masked_bias"}, where="here")
    assert {claim.theirs[0] for claim in found.claims} == NAMES
    assert found.twins == (("lm_head", "wte"),)
    assert found.dropped == (("h.11.attn.masked_bias", "a mask"),)


def test_a_leftover_may_end_in_any_way_but_not_begin_so():
    drop = Drop("tower.{any}", "the part that sees")
    assert drop.fits("tower.layers.0.w", decoder())
    assert not any(drop.fits(name, decoder()) for name in ("tower.", "towerx.w", "model.tower.w"))


def test_what_a_file_may_lack_is_zero_where_it_does():
    table = (*TABLE, Move("bias", "head.bias", optional=True))
    assert match(table, two_kinds_of_layer(), NAMES, where="here").zeros == ("head.bias",)
    found = match(table, two_kinds_of_layer(), NAMES | {"bias"}, where="here")
    assert ("bias",) in {claim.theirs for claim in found.claims}
    assert found.zeros == ()


def test_missing_and_unexpected_tensors_are_named_together():
    names = NAMES - {"h.2.mark"} | {"h.1.mark", "h.x.attn.masked_bias"}
    with pytest.raises(
        CheckpointError, match=r"^here: missing h\.2\.mark; unexpected h\.1\.mark, h\.x\.attn\.masked_bias\."
    ):
        match(TABLE, two_kinds_of_layer(), names, where="here")


def test_a_twin_is_unexpected_where_it_would_be_a_tensor_of_its_own():
    config = ModelConfig.model_validate({**dict(two_kinds_of_layer()), "head": {"tied": False}})
    with pytest.raises(CheckpointError, match="unexpected lm_head"):
        match(TABLE, config, NAMES | {"lm_head"}, where="here")


def test_a_config_with_more_layers_than_there_are_tensors_is_refused_before_names_are_made():
    config = ModelConfig.model_validate({**dict(decoder()), "n_layers": 10**9})
    with pytest.raises(CheckpointError, match="the config says 1000000000 layers, but there are only 7 tensors"):
        match(TABLE, config, NAMES, where="here")


def test_the_order_of_the_rows_means_nothing():
    config = two_kinds_of_layer()
    there, back = (match(table, config, NAMES, where="here") for table in (TABLE, TABLE[::-1]))
    assert set(there.claims) == set(back.claims)


def test_a_site_knows_the_block_of_its_layer():
    config = two_kinds_of_layer()
    assert [Site(config, config, i).block.name for i in range(4)] == [b.name for b in config.layers()]
