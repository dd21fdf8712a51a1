"""Encoder-decoders learn from pairs and from spans, models that read both ways from masks; padding never counts."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import onehop
from onehop.base.errors import ConfigError, DataError, OnehopError
from onehop.config import Recipe, read
from onehop.data.loader import Loader, evaluation_batches
from onehop.data.pack import NO_TARGET
from onehop.data.pairs import Borders, batch_of
from onehop.data.shards import Shards
from onehop.training import session
from onehop.training.loss import batch_loss
from onehop.training.picture import look_across
from onehop.training.trainer import Trainer
from onehop.training.understanding import ask_pairs
from onehop.weights.open import config_of
from tests.small_models import decoder, encoder_decoder, small_model
from tests.training.small_runs import sentences

SEES = {"n_heads": 2, "sees": "all"}
PLAIN = {"kind": "plain", "d_ff": 32}
MODELS = {
    "pairs": {"encoder": {"n_layers": 1, "attention": SEES, "ffn": PLAIN}, "cross": {"n_heads": 2}},
    "masked": {"attention": SEES},
}
MODELS["spans"] = MODELS["pairs"]
NARROW = {**MODELS["pairs"]["encoder"], "embed": {"width": 8}, "share_embedding": False}


def pairs(folder, n=120):
    """Words and the same words backwards: .jsonl or, by the file's name, .tsv."""
    rows = [(f"{a}{b}{c}", f"{c}{b}{a}") for a in "abcde" for b in "abcde" for c in "abcde"][:n]
    (folder / "pairs.jsonl").write_text("\n".join(json.dumps({"source": s, "target": t}) for s, t in rows))
    (folder / "pairs.tsv").write_text("\n".join(f"{s}\t{t}" for s, t in rows) + "\n")


def recipe(folder, task, *, model=None, data=None, file="pairs.jsonl", **train):
    if not (folder / "pairs.jsonl").exists():
        pairs(folder)
        (folder / "text.txt").write_text(sentences())
    kind = task if isinstance(task, str) else task["kind"]
    where = {"files": [str(folder / file)]}
    if kind != "pairs":
        where = {"files": [str(folder / "text.txt")], "separator": "\n"}
    return Recipe(
        out=str(folder / "out"),
        model={
            "d_model": 32, "n_layers": 1, "max_len": 32, "attention": {"n_heads": 2}, "ffn": PLAIN,
            **MODELS.get(kind, {}), **(model or {}),
        },
        data={**where, "vocab_size": 258, "validation": 0.1, **(data or {})},
        task=task,
        train={
            "steps": 6, "batch_size": 8, "lr": 1e-2, "eval_every": 6, "eval_rows": 8, "sample_tokens": 6,
            "device": "cpu", "precision": "float32", "measure_peak": False, **train,
        },
    )  # fmt: skip


def surprise(model, batch):
    return float(batch_loss(model, batch).surprise.detach())


# What counts


def test_a_batch_of_pairs_costs_what_its_pairs_cost_one_by_one():
    """Rows of unequal length, on both sides: no padding is read, none is asked for."""
    model = small_model(encoder_decoder())
    sources = [np.array([5, 6, 7]), np.array([8]), np.arange(3, 13)]
    said = [np.array([4, 2]), np.arange(3, 12), np.array([9, 9, 9, 2])]
    alone = [surprise(model, batch_of([s], [t], Borders(1, 2), most=64)) for s, t in zip(sources, said, strict=True)]
    together = batch_of(sources, said, Borders(1, 2), most=64)
    assert together.n_targets == sum(map(len, said))
    # float64, and other shapes of the same sums
    assert surprise(model, together) == pytest.approx(sum(alone), rel=1e-12)


def test_the_loss_of_a_pair_is_that_of_each_token_after_the_start_and_those_before():
    model = small_model(encoder_decoder())
    source, said = [5, 6, 7], [4, 9, 2]
    logits = model(torch.tensor([source]), torch.tensor([[1, 4, 9]]))
    expected = -logits.log_softmax(-1)[0, torch.arange(3), said].sum()
    batch = batch_of([np.array(source)], [np.array(said)], Borders(1, 2), most=64)
    assert surprise(model, batch) == pytest.approx(float(expected.detach()), rel=1e-12)


def test_padding_is_not_seen_by_a_model_that_reads_both_ways():
    """A causal model never looks at padding, which stands behind its text; this one would."""
    model = small_model(decoder(attention={"sees": "all"}))
    text = Shards("text", np.arange(3, 12), np.array([0, 9]), 0)
    short, long = (next(iter_one(text, length)) for length in (9, 16))
    assert long.padded
    assert not short.padded
    assert surprise(model, long) == pytest.approx(surprise(model, short), rel=1e-12)


def iter_one(text, length):
    for batch in evaluation_batches(text, batch_size=1, length=length):
        yield replace(batch, targets=torch.where(batch.doc >= 0, batch.tokens, NO_TARGET))


# Runs


@pytest.mark.parametrize("task", ["pairs", "spans", "masked"])
def test_each_task_is_learned_and_taken_up_again_bit_for_bit(tmp_path, task):
    whole = Trainer(recipe(tmp_path, task, steps=30))
    first = whole.evaluate()
    losses = [result.loss for result in whole.steps()]
    assert whole.evaluate() < 0.8 * first
    half = Trainer(recipe(tmp_path, task, steps=30), fresh=True)
    head = [result.loss for _, result in zip(range(11), half.steps(), strict=False)]
    half.save()
    again = Trainer(recipe(tmp_path, task, steps=30), resume=True)
    assert again.data.reused
    assert head + [result.loss for result in again.steps()] == losses


def test_joined_documents_are_seen_by_who_fills_in_masked_tokens(tmp_path):
    """The same tokens are covered, and the first loss is another: on both sides of the text."""
    found = []
    for documents in ("separate", "joined"):
        long = {"data": {"documents": documents}, "model": {"max_len": 96}}
        trainer = Trainer(recipe(tmp_path, "masked", **long), fresh=True)
        assert trainer.loader.batch(0).packed
        found.append((trainer.evaluate(), next(trainer.steps()).loss, trainer.loader.batch(0).targets.tolist()))
    assert found[0][2] == found[1][2]
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


@pytest.mark.parametrize("task", ["pairs", "masked"])
@pytest.mark.parametrize("way", [{"loss_chunk": 8}, {"recompute": "block"}, {"recompute": "selective"}])
def test_memory_is_saved_without_another_result(tmp_path, task, way):
    found = []
    for own in ({}, way):
        trainer = Trainer(recipe(tmp_path, task, steps=3, **own), fresh=True)
        found.append([result.loss for result in trainer.steps()] + [trainer.evaluate()])
    assert found[1] == pytest.approx(found[0], rel=1e-5)  # chunks are float32 sums in another order


@pytest.mark.parametrize("own", [{"width_transfer": 8}, {"optimizer": "muon"}, {"ema": 0.9, "z_loss": 1e-2}])
def test_encoder_decoders_are_resumed_with_every_way_to_move_them_bit_for_bit(tmp_path, own):
    options = {"steps": 6, "micro_batch": 2, "batch_start": 4, "batch_warmup": 4, **own}
    whole = Trainer(recipe(tmp_path, "pairs", **options))
    losses = [result.loss for result in whole.steps()]
    half = Trainer(recipe(tmp_path, "pairs", **options), fresh=True)
    head = [result.loss for _, result in zip(range(3), half.steps(), strict=False)]
    half.save()
    again = Trainer(recipe(tmp_path, "pairs", **options), resume=True)
    assert head + [result.loss for result in again.steps()] == losses
    if "ema" in own:
        again.save()
        assert onehop.load(again.out / "ema").start_id == again.lesson.borders.start


@pytest.mark.parametrize("task", ["pairs", "spans", "masked"])
def test_a_whole_run_of_each_task_ends_in_a_model_that_opens(tmp_path, task):
    run = onehop.train(recipe(tmp_path, task))
    lm = onehop.load(run.out)
    if task == "masked":
        assert lm.limits.both_ways
        assert not (run.out / "samples.txt").exists()
        return
    assert lm.start_id == run.trainer.lesson.borders.start
    assert lm.generate(["abc"], temperature=0, max_new_tokens=3)[0].token_ids
    assert " → " in (run.out / "samples.txt").read_text()


@pytest.mark.parametrize("task", ["pairs", "spans", "masked"])
def test_a_run_goes_on_from_a_model_of_the_same_task_with_its_marks_and_borders(tmp_path, task):
    first = Trainer(recipe(tmp_path, task))
    list(first.steps())
    first.save()
    (tmp_path / "more").mkdir()
    own = recipe(tmp_path, task).data.model_dump(exclude={"vocab_size", "mixture"})
    table = {"out": str(tmp_path / "more"), "data": own, "task": task, "tune": {"init": str(tmp_path / "out")}}
    train = {"steps": 3, "batch_size": 8, "eval_rows": 8, "device": "cpu", "precision": "float32"}
    (tmp_path / "more.json").write_text(json.dumps({**table, "train": train}))
    again = Trainer(read(tmp_path / "more.json", model_of=config_of).recipe)
    assert again.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert again.lesson.borders == first.lesson.borders
    assert again.evaluate() == pytest.approx(first.evaluate(), rel=1e-6)
    assert next(again.steps()).loss > 0


@pytest.mark.parametrize("task", ["spans", "masked"])
def test_what_is_known_of_a_corpus_is_told_only_of_the_task_that_it_is_about(tmp_path, task):
    """The entropy of fables is that of the next token, and their questions are for who goes on with a text."""
    data = {"corpus": "fables", "files": [], "separator": None, "n_documents": 40}
    run = onehop.train(recipe(tmp_path, task, data=data, steps=1))
    assert run.best_possible is None
    assert run.understanding == {}


def test_a_run_on_dates_is_asked_for_held_out_ones_and_draws_where_an_answer_looks(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "ANSWERS", 3)
    data = {"corpus": "dates", "files": [], "n_documents": 60}
    run = onehop.train(recipe(tmp_path, "pairs", data=data, steps=2, model={"max_len": 64}))
    assert run.understanding["pairs"].asked == 3
    assert (run.out / "dates_attention.png").read_bytes().startswith(b"\x89PNG")


def test_the_weights_that_are_drawn_are_those_of_the_answer_over_the_source(tmp_path):
    trainer = Trainer(recipe(tmp_path, "pairs"))
    source, said, weights = look_across(trainer.model, trainer.tokenizer, ("abc", "cb"), borders=trainer.lesson.borders)
    assert source == ["<|bos|>", "a", "b", "c"]
    assert said == ["c", "b", "<|eos|>"]
    assert weights.shape == (1, 3, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 3))


@pytest.mark.slow
def test_an_encoder_decoder_learns_to_turn_words_round_and_answers_as_it_was_taught(tmp_path):
    """Held-out words too; what it says after it was saved is what it says in the trainer."""
    model = {"attention": {"n_heads": 4}, "embed": {"position": "sinusoidal"}}
    model["encoder"] = {**MODELS["pairs"]["encoder"], "embed": {"position": "sinusoidal"}}
    trainer = Trainer(recipe(tmp_path, "pairs", model=model, steps=350, batch_size=32, optimizer="muon", warmup=20))
    list(trainer.steps())
    held = trainer.data.validation
    decode, tokens = trainer.tokenizer.decode, held.tokens
    sources = [decode(held.source[a:b]) for a, b in zip(held.source_starts, held.source_starts[1:], strict=False)]
    targets = [decode(tokens[a:b]) for a, b in zip(held.starts, held.starts[1:], strict=False)]
    assert all(source == target[::-1] for source, target in zip(sources, targets, strict=True))
    both = list(zip(sources, targets, strict=True))
    found = ask_pairs(trainer.model, trainer.tokenizer, both, borders=trainer.lesson.borders)
    assert found.right >= 0.8 * len(both)
    trainer.save()
    said = [done.text for done in onehop.load(trainer.out).generate(sources, temperature=0)]
    assert sum(text == target for text, target in zip(said, targets, strict=True)) == found.right


def test_tables_of_two_columns_and_json_lines_are_the_same_pairs(tmp_path):
    found = []
    for file in ("pairs.tsv", "pairs.jsonl"):
        trainer = Trainer(recipe(tmp_path, "pairs", file=file), fresh=True)
        batch = trainer.loader.batch(0)
        found.append((batch.tokens.tolist(), batch.targets.tolist(), batch.source.tolist()))
    assert found[0] == found[1]


def test_pairs_that_do_not_fit_into_a_row_are_left_out_and_counted(tmp_path):
    pairs(tmp_path)
    with (tmp_path / "pairs.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"source": "a" * 100, "target": "b"}))
        file.write("\n" + json.dumps({"source": "a", "target": "b" * 100}))
    trainer = Trainer(recipe(tmp_path, "pairs", data={"validation": 0.001}))
    assert "2 longer than 32 tokens left out" in trainer.loader.summary()
    assert max(trainer.loader.batch(n).source.size(1) for n in range(20)) <= 32


@pytest.mark.parametrize(
    ("task", "options", "error", "text"),
    [
        ("pairs", {"model": {"encoder": None, "cross": None}}, ConfigError, "task=pairs is for encoder-decoders"),
        ("next", {"model": MODELS["pairs"]}, ConfigError, "task=next is for models without an encoder.*Use task=pairs"),
        ("masked", {"model": {"attention": {"n_heads": 2}}}, ConfigError, "task=masked is for models that read both"),
        ("masked", {"sample": "a fox"}, ConfigError, "train.sample='a fox' has no effect with task=masked"),
        ("masked", {"data": {"tokenizer": "characters", "vocab_size": 1024}}, ConfigError, "no begin, end and mask"),
        ("pairs", {"data": {"text_field": "story"}}, ConfigError, "data.text_field has no effect with task=pairs"),
        ("pairs", {"data": {"documents": "joined"}}, ConfigError, "data.documents has no effect with task=pairs"),
        ("pairs", {"compile": "yes"}, ConfigError, "train.compile=yes compiles for one shape .*task=pairs"),
        ("pairs", {"width_transfer": 16, "model": {"encoder": NARROW}},
         ConfigError, "train.width_transfer=16 counts on maps"),
        ("spans", {"data": {"documents": "joined"}}, ConfigError, "data.documents has no effect with task=spans"),
        ({"kind": "masked", "as_mask": 0.9, "as_random": 0.2}, {}, ConfigError, "task.as_mask=0.9 and .*at most"),
        ({"kind": "spans", "rate": 0.5, "mean_span": 1.0}, {"model": {**MODELS["spans"], "max_len": 512}},
         ConfigError, "marks for 99"),
        ({"kind": "spans", "rate": 0.5, "mean_span": 1.0}, {}, ConfigError,
         "make targets of 34 tokens of rows of 32, and model.max_len=32"),
        ("pairs", {"file": "text.txt"}, DataError, "text.txt holds no records"),
        ({"kind": "pairs", "target": "answer"}, {}, DataError, "no field 'answer' .it has source, target"),
        ({"kind": "pairs", "source": "foo"}, {"file": "pairs.tsv"}, ConfigError,
         r"^task\.source=foo has no effect: both columns of a \.tsv file are told by their place\. Leave it out\.$"),
        ({"kind": "pairs", "target": "foo"}, {"data": {"corpus": "dates", "files": [], "n_documents": 9}}, ConfigError,
         r"^task\.target=foo has no effect: the corpus dates makes its pairs itself\. Leave it out\.$"),
        ("pairs", {"data": {"files": ["nowhere.jsonl"]}}, DataError, "nowhere.jsonl does not exist"),
        ("pairs", {"data": {"corpus": "fables", "files": [], "n_documents": 9}}, ConfigError, "no pairs .*Use dates"),
        ("pairs", {"data": {"corpus": "dates", "files": []}}, ConfigError, "dates is endless"),
        ("pairs", {"data": {"n_documents": 1}}, DataError, "there are 1 examples"),
        ({"kind": "masked", "rate": 1e-9}, {}, DataError, "hold no token to predict.*raise task.rate"),
        ("sentences", {}, ConfigError, "task='sentences' does not exist"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_is_refused_and_leaves_nothing_behind(tmp_path, task, options, error, text):
    with pytest.raises(error, match=text) as refused:
        Trainer(recipe(tmp_path, task, **options))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", r"pairs\.jsonl:2: the field 'target' is empty\. Give a text, or drop that line\.$"),
        (None, r"pairs\.jsonl:2: the field 'target' is null, no text\. Give a text, or drop that line\.$"),
        (5, r"pairs\.jsonl:2: the field 'target' is 5, no text\."),
    ],
)
def test_a_side_of_a_pair_that_is_no_text_is_refused_by_its_number(tmp_path, value, text):
    wanted = recipe(tmp_path, "pairs")
    rows = (tmp_path / "pairs.jsonl").read_text().splitlines()
    rows[1] = json.dumps({"source": "a", "target": value})
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    with pytest.raises(DataError, match=text):
        Trainer(wanted)


def test_padding_makes_no_row_longer_than_the_context():
    row, long = np.arange(5), np.arange(27)
    batch = batch_of([row, long], [row, long], Borders(1, 2), most=30)
    assert batch.source.shape == batch.tokens.shape == batch.targets.shape == (2, 30)
    assert batch_of([row], [row], Borders(1, 2), most=30).tokens.shape == (1, 8)
    assert batch_of([long], [np.arange(40)], Borders(1, 2), most=30).tokens.shape == (1, 40)  # all of it is said


def test_a_validation_side_without_a_pair_that_fits_is_refused_though_samples_are_wanted(tmp_path):
    """The sample goes on from the first source of the evaluation, and there is none."""

    def lay(*long):
        rows = [{"source": f"{i:03d}" * (30 if i in long else 1), "target": "b"} for i in range(40)]
        (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))

    lay()
    trainer = Trainer(recipe(tmp_path, "pairs"))
    held, decode = trainer.lesson.data.validation, trainer.tokenizer.decode
    cuts = zip(held.source_starts[:-1], held.source_starts[1:], strict=True)
    lay(*(int(decode(held.source[start:stop].tolist())) for start, stop in cuts))
    with pytest.raises(DataError, match=r"the validation rows hold no token to predict, with train\.context=32"):
        Trainer(recipe(tmp_path, "pairs", sample_tokens=5), fresh=True)


def test_questions_longer_than_the_context_are_not_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "ANSWERS", 30)
    data = {"corpus": "dates", "files": [], "n_documents": 200}
    learned = {"embed": {"position": "learned"}}
    model = {**learned, "encoder": {**MODELS["pairs"]["encoder"], **learned}, "max_len": 22}
    run = onehop.train(recipe(tmp_path, "pairs", model=model, data=data, sample_tokens=2))
    assert 0 < run.understanding["pairs"].asked < 30


def test_a_run_without_a_token_to_predict_has_not_succeeded(tmp_path):
    rare = {"kind": "masked", "rate": 0.01}
    with pytest.raises(DataError, match=r"no step had a token to predict, with train.context=4\..*raise task\.rate"):
        onehop.train(recipe(tmp_path, rare, steps=2, context=4, batch_size=1, eval_rows=500))
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == [None] * len(rows)


def test_a_source_that_fills_a_row_is_no_reason_to_refuse_the_run(tmp_path):
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps({"source": "a" * 31, "target": "b"}) for _ in range(9)))
    (tmp_path / "text.txt").write_text(sentences())
    trainer = Trainer(recipe(tmp_path, "pairs"))
    assert len(next(trainer.lesson.evaluation()).source[0]) == trainer.recipe.model.max_len
    assert len(trainer.sample_prompt()) == trainer.recipe.model.max_len - trainer.recipe.train.sample_tokens
    with pytest.raises(ConfigError, match=r"^train.sample has 41 tokens, and model.max_len=32 leaves no room"):
        Trainer(recipe(tmp_path, "pairs", sample="a" * 40), fresh=True)


def test_a_tokenizer_without_marks_is_refused_by_what_needs_them(tmp_path):
    Trainer(recipe(tmp_path, "pairs")).save()
    own = {"tokenizer": str(tmp_path / "out" / "tokenizer.json"), "vocab_size": 1024}
    for task, needed in (("masked", r"a mask token \(<\|mask\|>, "), ("spans", "the tokens <extra_id_0>")):
        with pytest.raises(OnehopError, match=f"task={task} needs {needed}"):
            Trainer(recipe(tmp_path, task, data=own), fresh=True)


@pytest.mark.parametrize(
    ("task", "change"),
    [
        ({"kind": "masked"}, {"rate": 0.4}),
        ({"kind": "masked"}, {"as_mask": 0.1}),
        ({"kind": "masked"}, {"as_random": 0.2}),
        ({"kind": "spans"}, {"rate": 0.4}),
        ({"kind": "spans"}, {"mean_span": 1.0}),
        ({"kind": "pairs"}, {"source": "target"}),
        ({"kind": "pairs"}, {"target": "source"}),
    ],
)
def test_every_field_of_a_task_changes_what_is_read(tmp_path, task, change):
    seen = []
    for i, kind in enumerate((task, {**task, **change})):
        (tmp_path / str(i)).mkdir()
        batch = Trainer(recipe(tmp_path / str(i), kind)).loader.batch(0)
        seen.append([t if t is None else t.tolist() for t in (batch.tokens, batch.targets, batch.source)])
    assert seen[0] != seen[1]


def test_the_order_of_examples_is_another_in_each_epoch_and_for_each_seed(tmp_path):
    found = {}
    for seed in (0, 1):
        trainer = Trainer(recipe(tmp_path, "pairs", seed=seed), fresh=True)
        n = trainer.loader.n_rows // 8
        rows = [tuple(map(tuple, trainer.loader.batch(i).source.tolist())) for i in range(2 * n)]
        found[seed] = rows[0], rows[n]
    assert len({*found[0], *found[1]}) == 4
    assert isinstance(Trainer(recipe(tmp_path, "masked"), fresh=True).loader.loader, Loader)
