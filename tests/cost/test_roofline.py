"""Traffic, devices and the time of a phase: hand cases, and what must grow with what."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onehop
from onehop.base.errors import ConfigError
from onehop.cost.activations import Run
from onehop.cost.devices import DEVICES, Device, Pace, device, from_dict, to_dict
from onehop.cost.flops import Pass, products
from onehop.cost.muon import muon_flops
from onehop.cost.roofline import Work, rate_at
from onehop.cost.serving import InferencePlan
from onehop.cost.traffic import Shape, attention_bytes, crossover, plain_bytes, queries_on_chip, tiled_bytes
from onehop.cost.weights import weights
from tests.small_models import decoder, encoder_decoder

# Traffic


def walked(s, on_chip):
    """Bytes that the two algorithms move, counted load by load and store by store for one text."""
    t, k, d, n = s.length, s.n_keys, s.d_head, s.n_heads
    plain = n * (t * d + t * k) + s.n_kv_heads * k * d  # read q and k, write scores
    plain += n * (t * k + t * k)  # read scores, write weights
    plain += n * (t * k + t * d) + s.n_kv_heads * k * d  # read weights and v, write the output
    rows = queries_on_chip(s, on_chip)
    tiled = sums = 0
    for _ in range(n):
        for start in range(0, t, rows):
            run = min(rows, t - start)
            tiled += run * d  # read q
            for first in range(0, k, rows):
                tile = range(first, min(first + rows, k))
                apart = max(0, start - tile[-1], tile[0] - (start + run - 1))  # of the nearest query and key
                if s.window is None or apart < s.window:
                    tiled += 2 * len(tile) * d  # read k and v
            tiled += run * d  # write the output
            sums += run
    return s.size * plain, s.size * tiled + 4 * sums


lengths, chips = st.integers(1, 300), st.sampled_from([512, 4096, 65536])


@given(lengths, st.sampled_from([1, 2, 4]), st.sampled_from([8, 16]), chips)
def test_bytes_are_those_of_the_algorithms_walked_through(length, kv_heads, d_head, on_chip):
    s = Shape(4, kv_heads, d_head, length, 2.0)
    assert (plain_bytes(s), tiled_bytes(s, on_chip)) == walked(s, on_chip)


@given(lengths, st.integers(1, 320), st.sampled_from([1, 2]), chips)
def test_so_they_are_with_a_window(length, window, kv_heads, on_chip):
    s = Shape(2, kv_heads, 8, length, 2.0, window=window)
    assert (plain_bytes(s), tiled_bytes(s, on_chip)) == walked(s, on_chip)


@given(lengths, lengths, chips)
def test_so_they_are_over_a_source(length, source, on_chip):
    s = Shape(2, 2, 8, length, 2.0, keys=source)
    assert (plain_bytes(s), tiled_bytes(s, on_chip)) == walked(s, on_chip)


def test_tiles_beyond_a_window_are_not_read():
    """By hand: 10 tokens in tiles of 2 are 5 runs. A window of 3 reaches 2 keys further: one tile on either side.

    The runs read 2, 3, 3, 3, 2 tiles of 2 keys. A window of 1 reads each run's own tile, one of all tokens all 5.
    """
    keys = {1: 10, 3: 26, 10: 50, None: 50}
    for window, n in keys.items():
        s = Shape(1, 1, 4, 10, 2.0, window=window)
        assert queries_on_chip(s, 64) == 2
        assert tiled_bytes(s, 64) == 2 * (2 * 10 * 4 + 2 * n * 4) + 4 * 10
        assert plain_bytes(s) == 2 * (4 * 10 * 4 + 4 * 10 * 10)  # hidden scores are written too


def test_an_encoder_decoder_reads_its_source_too():
    """Each of 2 layers of encoder, decoder and cross-attention takes as much: no tile is left out of either."""
    config = encoder_decoder()
    one = Shape.of(config.blocks[0].attention, 40, 2.0)
    layers = 2 * config.n_layers + config.encoder.n_layers
    assert attention_bytes(config, 40, 2.0) == (layers * plain_bytes(one), layers * tiled_bytes(one))


@pytest.mark.parametrize(("d_head", "window"), [(64, None), (128, None), (128, 300), (256, 512)])
def test_from_the_crossover_on_the_definition_moves_twice_as_much(d_head, window):
    """Not where it first does: with heads of 128, tokens 129 to 192 are one run, and the second costs more."""
    config = decoder(attention={"n_heads": 4, "n_kv_heads": 4, "d_head": d_head, "window": window})
    at = crossover(config, 2.0)
    assert not_twice(config, at - 1)
    assert [n for n in range(at, at + 2000) if not_twice(config, n)] == []
    if d_head == 64:
        assert at <= 2 * 64  # as soon as T x T numbers are as many as q, k, v and the output have


def not_twice(config, length):
    plain, tiled = attention_bytes(config, length, 2.0)
    return plain < 2 * tiled


def test_wide_heads_have_no_crossover():
    """Of heads of 256, 96 tokens fill the chip: for each query the definition moves 4 S numbers, tiles 512 S / 96."""
    config = decoder(attention={"n_heads": 4, "n_kv_heads": 4, "d_head": 256})
    assert crossover(config, 2.0) is None
    plain, tiled = attention_bytes(config, 1 << 30, 2.0)
    assert plain / tiled == pytest.approx(4 / (512 / 96), rel=1e-4)


def test_a_published_ratio_has_its_size():
    """FlashAttention, figure 2: 40.3 GB against 4.4 GB, forward and backward, with masks and dropout (9 times)."""
    s = Shape(16, 16, 64, 1024, 2.0)
    assert 5 < plain_bytes(s) / tiled_bytes(s) < 20


# Devices


def test_a_device_is_found_in_any_spelling_and_a_near_miss_is_named():
    assert device("rtx4090") is device("NVIDIA RTX 4090") is device("RTX-4090")
    with pytest.raises(ConfigError, match=r"the device 'H2000' is not in the table\. Did you mean H200\?"):
        device("H2000")


def test_every_device_has_figures_and_a_source():
    for found in DEVICES:
        assert found.memory > 1e9
        assert found.bandwidth > 1e10
        assert found.peak("bfloat16") >= found.peak("float32")
        assert len(found.source) > 20


PACE = Pace(
    linear={"float32": {16: {1: 1e10, 64: 1e11}, 1024: {1: 2e10, 64: 2e11}}},
    trained={"float32": {64: {64: 1e11}}}, attention={"float32": {32: {64: 1e11}}},
    attention_back={"float32": {32: {64: 1e11}}}, orthogonal={"float32": {64: {64: 2e10}}}, passes=1e10,
    functions={"forward": 1e9, "back": 2e9},
    per_layer={"decode": {"float32": 1e-4}, "training": {"float32": 1e-3}},
)  # fmt: skip
HERE = Device("here", 16e9, 4e10, {"float32": 2e11}, "measured", "cpu", PACE)


def test_a_measurement_survives_json():
    assert from_dict(to_dict(HERE)) == HERE
    with pytest.raises(ConfigError, match="is damaged"):
        from_dict({"name": "here"})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("flops", "fast"), ("flops.float32", "1e11"), ("flops.float32", None), ("flops.float32", True),
        ("bandwidth", [4e10]), ("bandwidth", 0), ("memory", math.inf), ("memory", math.nan),
        ("name", 7), ("source", None),
        ("pace", []), ("pace.passes", {}), ("pace.functions", 1e9), ("pace.functions", {}),
        ("pace.functions.back", "x"), ("pace.per_layer.decode", 1e-4),
        ("pace.whole", "x"), ("pace.passed", 1.0), ("pace.orthogonal", {}),
        ("pace.linear", {}), ("pace.linear.float32", {}), ("pace.linear.float32.16", {}),
        ("pace.linear.float32.16.1", "quick"), ("pace.linear.float32.16.0", 1e9),
    ],
)  # fmt: skip
def test_a_measurement_of_other_types_is_damaged(path, value):
    raw = to_dict(HERE)
    *tables, last = path.split(".")
    inner = raw
    for word in tables:
        inner = inner[word]
    inner[last] = value
    with pytest.raises(ConfigError, match="is damaged"):
        from_dict(raw)


# Time


def work(config, where=DEVICES[0]):
    return Work(config, weights(config), where)


@pytest.mark.parametrize("where", [device("H200"), HERE], ids=["of the table", "measured"])
def test_time_grows_with_everything_that_grows(where):
    def grown(**own):
        return decoder(**{"d_model": 64, "n_layers": 4, "ffn": {"kind": "gated", "d_ff": 128}, **own})

    for bigger in (grown(n_layers=8), grown(d_model=128), grown(ffn={"kind": "gated", "d_ff": 512})):
        small, large = work(grown(), where), work(bigger, where)
        plan = InferencePlan(batch=2, context=32, dtype="float32")
        assert large.decode(plan).seconds > small.decode(plan).seconds
        assert large.prefill(plan).seconds > small.prefill(plan).seconds
        assert large.train(Run(2, 32)).seconds > small.train(Run(2, 32)).seconds
    plans = [InferencePlan(batch=b, context=c, dtype="float32") for b, c in ((1, 16), (2, 16), (2, 32), (4, 64))]
    for less, more in itertools.pairwise(plans):
        assert work(grown(), where).prefill(more).seconds > work(grown(), where).prefill(less).seconds
        assert work(grown(), where).decode(more).seconds >= work(grown(), where).decode(less).seconds


def test_one_text_decodes_as_fast_as_its_weights_and_cache_can_be_read():
    config, plan = onehop.presets["llama-3-8b"], InferencePlan(context=8192)
    found = work(config, device("H200")).decode(plan)
    read = 2 * (8_030_261_248 - 128256 * 4096) + 8192 * 131072  # all but the embedding, of which a row is read
    norms = 2 * (2 * 32 + 1) * 4096  # vectors are read too, and not counted
    assert found.bound_by == "bandwidth"
    assert found.seconds == pytest.approx((read - norms) / 4.8e12, rel=1e-9)


def test_an_encoder_decoder_reads_its_source_once_and_then_its_decoder_alone():
    config = encoder_decoder(d_model=64)
    plan = InferencePlan(context=32, source=32, dtype="float32")
    found = work(config, device("H200"))
    encoder = 2 * (4 * 64**2 + 2 * 64 * 24)
    decoder = 2 * (2 * 64**2 + 4 * 64**2 + 2 * 64 * 24) + config.vocab_size * 64  # of crossing, wq and wo
    cache = 2 * 2 * 2 * 64 * 32 * 4  # own and crossing keys and values of two layers
    assert found.decode(plan).memory_s == pytest.approx((4 * decoder + cache) / 4.8e12)
    crossing = 2 * 2 * 64**2
    looked = 2 * 4 * 64 * 32 * 32 + 2 * 4 * 64 * (1 + 32)  # by the encoder, and by one token at itself and the source
    read = 2 * (encoder + crossing) * 32 + 2 * decoder + looked
    prefill = found.prefill(plan)
    assert (prefill.tokens, prefill.compute_s) == (32, pytest.approx(read / 67e12))
    assert onehop.plan(config).as_dict(onehop.cost.Asked(context=32))["flops"]["prefill"] == read


def test_on_a_measured_machine_the_encoder_costs_nothing_after_the_source_was_read():
    plan = InferencePlan(context=32, source=32, dtype="float32")
    few, many = encoder_decoder(), encoder_decoder()
    many = many.model_copy(update={"encoder": many.encoder.model_copy(update={"n_layers": 8})})
    assert work(few, HERE).decode(plan) == work(many, HERE).decode(plan)
    assert work(few, HERE).prefill(plan).seconds < work(many, HERE).prefill(plan).seconds


def test_a_large_batch_is_bound_by_arithmetic():
    found = work(onehop.presets["llama-3-8b"], device("H200")).train(Run(8, 4096, "bfloat16", on_cpu=False))
    assert found.bound_by == "compute"
    assert found.tokens == 8 * 4096


def test_blocks_that_are_computed_again_take_a_forward_pass_more_and_the_head_does_not():
    config, run = onehop.presets["llama-3-8b"], Run(8, 4096, "bfloat16", on_cpu=False)
    where = device("H200")
    plain, again = (work(config, where).train(run, recompute=how) for how in ("none", "block"))
    head = 2 * 128256 * 4096 * run.tokens / where.peak("bfloat16")
    assert again.compute_s - plain.compute_s == pytest.approx(plain.compute_s / 3 - head)
    selective = work(config, where).train(run, recompute="selective")
    assert (selective.compute_s, selective.memory_s) == (plain.compute_s, again.memory_s)
    assert again.memory_s > plain.memory_s


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("where", [device("H200"), HERE], ids=["of the table", "measured"])
def test_muon_takes_its_arithmetic_once_a_step(where, precision):
    """At the rate that it was measured to have, or at the peak of the table."""
    config = decoder(d_model=64, n_layers=4, ffn={"kind": "gated", "d_ff": 128})
    run = Run(2, 32, precision)
    for micro in (1, 4):
        adamw, muon = (work(config, where).train(run, micro_batches=micro, optimizer=o) for o in ("adamw", "muon"))
        expected = muon_flops(weights(config)) / (where.peak(precision) if where.pace is None else 2e10)
        assert muon.seconds - adamw.seconds == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ffn", "bent"),
    [
        ({"kind": "gated", "d_ff": 128}, 4 * 128),
        ({"kind": "moe", "d_ff": 32, "n_experts": 8, "n_active": 2, "d_ff_shared": 64}, 4 * (2 * 32 + 64)),
    ],
)
def test_activation_functions_and_softmax_take_their_time_on_a_measured_machine(ffn, bent):
    config, run = decoder(d_model=64, n_layers=4, ffn=ffn), Run(2, 32)
    free = replace(HERE, pace=replace(PACE, functions={"forward": math.inf, "back": math.inf}))
    forward, both = 1e-9, 1e-9 + 0.5e-9  # by PACE
    for again, more in (("none", 0.0), ("block", 64 * bent * forward)):
        taken, rest = (work(config, where).train(run, recompute=again).seconds for where in (HERE, free))
        assert taken - rest == pytest.approx(64 * (bent + config.vocab_size) * both + more)
    plan = InferencePlan(batch=2, context=32, dtype="float32")
    taken, rest = (work(config, where).prefill(plan).seconds for where in (HERE, free))
    assert taken - rest == pytest.approx(64 * bent * forward)


def test_on_a_measured_machine_less_memory_takes_more_time():
    config = decoder(d_model=64, n_layers=4, ffn={"kind": "gated", "d_ff": 128})
    seconds = [work(config, HERE).train(Run(2, 32), recompute=how).seconds for how in ("none", "selective", "block")]
    assert seconds[0] < seconds[1] < seconds[2]


def test_few_tokens_visit_few_experts():
    config, plan = onehop.presets["mixtral-8x7b"], InferencePlan(context=1)
    one = work(config, device("H200")).decode(plan)
    many = work(config, device("H200")).decode(InferencePlan(batch=64, context=1))
    assert 3 < many.memory_s / one.memory_s < 4  # 12.9B of 46.7B parameters, then nearly all


def test_a_rate_lies_between_those_of_the_widths_and_rows_around_it():
    # 8 rows and 128 wide are in the middle, as logarithms go, of 1 and 64, and of 16 and 1024
    assert rate_at(PACE.linear, "float32", 128, 8) == pytest.approx(math.sqrt(1e10 * 2e11))
    assert rate_at(PACE.linear, "float32", 8, 0.25) == pytest.approx(1e10)  # beyond what was measured: the nearest
    assert rate_at(PACE.linear, "bfloat16", 4096, 100) == pytest.approx(2e11)


def test_each_product_is_as_fast_as_its_own_rows_and_width_allow():
    free = replace(HERE, pace=replace(PACE, passes=math.inf))

    def seconds(vocab=64, **ffn):
        config = decoder(d_model=64, n_layers=4, vocab_size=vocab, ffn={"kind": "gated", "d_ff": 128, **ffn})
        return work(config, free).prefill(InferencePlan(batch=1, context=64, dtype="float32")).seconds

    one_row = rate_at(PACE.linear, "float32", math.sqrt(4096 * 64 / 2), 1)  # logits are asked of the last token only
    few_ids = 2 * 64 * 64 / rate_at(PACE.linear, "float32", math.sqrt(64 * 64 / 2), 1)
    assert seconds(vocab=4096) - seconds() == pytest.approx(2 * 4096 * 64 / one_row - few_ids)
    experts = {"kind": "moe", "n_experts": 8, "n_active": 1}
    few = 3 * 128 * 64 / rate_at(PACE.linear, "float32", 64, 64 / 8)  # each expert meets an eighth of the rows
    up, down = (128 * 64 / rate_at(PACE.linear, "float32", width, 64) for width in (64 * math.sqrt(2), 64))
    router = 2 * 64 * 8 * 64 / rate_at(PACE.linear, "float32", 16, 64)
    assert seconds(**experts) - seconds() == pytest.approx(4 * (2 * 64 * (few - 2 * up - down) + router))


def test_maps_side_by_side_are_one_wider_product():
    config = decoder(
        d_model=64, n_layers=1, attention={"n_heads": 4, "n_kv_heads": 2}, ffn={"kind": "gated", "d_ff": 96}
    )
    found = list(products(config, weights(config), Pass(1)))
    by_width = {round(2 * p.width**2): p.size for p in found if p.size}  # 2 · w · w numbers
    qkv, up = 64 * (64 + 32 + 32), 64 * (96 + 96)
    assert by_width == {n: n for n in (qkv, 64 * 64, up, 96 * 64, 64 * config.vocab_size)}


def test_a_whole_model_takes_more_than_its_parts():
    times = {"whole": {"decode": {"float32": 1.5}, "training": {"float32": 1.25}}}
    slow = replace(
        HERE, pace=replace(PACE, **times, passed={"training": {"float32": 3.0}, "prefill": {"float32": 2.0}})
    )
    config, asked = decoder(d_model=64, n_layers=4), InferencePlan(context=64, dtype="float32")
    for phase, mult, passing in (("decode", 1.5, 1.0), ("prefill", 1.0, 2.0), ("train", 1.25, 3.0)):
        run = Run(2, 32) if phase == "train" else asked
        parts, whole = (getattr(work(config, where), phase)(run) for where in (HERE, slow))
        assert (parts.passed_s > 0) == (phase != "decode")
        assert whole.seconds == pytest.approx(mult * (parts.seconds - parts.passed_s) + passing * parts.passed_s)
        assert whole.besides_s == pytest.approx(mult * parts.besides_s)
        assert whole.passed_s == pytest.approx(passing * parts.passed_s)


def test_attention_is_as_fast_as_its_heads_and_tokens_allow():
    slow = replace(PACE, attention={"float32": {32: {64: 1e9}, 128: {64: 1e9, 256: 4e9}}})
    config = decoder(d_model=256, n_layers=4, attention={"n_heads": 4})
    plan = InferencePlan(batch=2, context=128, dtype="float32")
    taken, rest = (work(config, replace(HERE, pace=p)).prefill(plan).seconds for p in (slow, PACE))
    seen = 2 * 4 * 4 * 256 * (128 * 129 / 2)  # 64 wide: between 1e9 and, for half of the way from 64 to 256, 2e9
    assert taken - rest == pytest.approx(seen / math.sqrt(2) / 1e9 - seen / 1e11)


def test_a_rate_between_two_measured_ones_lies_between():
    config = decoder()
    seconds = [
        work(config, HERE).decode(InferencePlan(batch=b, context=1, dtype="float32")).seconds / b for b in (1, 8, 64)
    ]
    assert seconds[0] > seconds[1] > seconds[2]
