"""Going on from a checkpoint: all of it, parts of it, adapters beside it; by chats; and the base is left alone."""

import json
import shutil
import threading
from pathlib import Path

import pytest
import torch

import onehop
from onehop.base.errors import ConfigError, DataError
from onehop.config import read
from onehop.lm.convert import convert
from onehop.parts.lora import adapters_of
from onehop.training import saving, session
from onehop.training.saving import ADAPTER
from onehop.training.trainer import Trainer
from onehop.weights.adapter import read_adapter
from onehop.weights.open import config_of
from tests.training.small_runs import recipe

STORIES = Path(__file__).parents[3] / "shared" / "models" / "stories260K"
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n{% else %}A: {{ m.content }}{{ eos_token }}\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)
TRAIN = {
    "steps": 20, "batch_size": 4, "context": 96, "lr": 5e-3, "eval_every": 20, "eval_rows": 4, "sample_tokens": 4,
    "device": "cpu", "precision": "float32",
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small model of sentences, trained for a moment and saved in Hugging Face's layout."""
    folder = tmp_path_factory.mktemp("base")
    norm = {"kind": "rms", "eps": 1e-5}
    model = {"norm": norm, "final_norm": norm, "head": {"tied": False}, "max_len": 128}
    onehop.train(recipe(folder, model=model, context=32, sample_tokens=0))
    onehop.load(folder / "out").save(folder / "hf", format="hf")
    return folder / "hf"


def chats(folder, n=40):
    """Questions with one or two answers, and a template."""
    rows = []
    for i in range(n):
        who, what = ("a fox", "the hen", "one crow")[i % 3], ("a nut", "the corn")[i % 2]
        talk = [("user", f"what sees {who}?"), ("assistant", f"{who} sees {what}.")]
        talk += [("user", "and then?"), ("assistant", f"{who} eats {what}.")] if i % 4 == 0 else []
        rows.append(json.dumps({"messages": [{"role": role, "content": text} for role, text in talk]}))
    (folder / "chat.jsonl").write_text("\n".join(rows))
    (folder / "chat.jinja").write_text(TEMPLATE)


def tuned(folder, base, *words, chat=True, **train):
    """The recipe of a run that goes on from `base`."""
    chats(folder)
    table = {
        "out": str(folder / "out"),
        "data": {"files": [str(folder / "chat.jsonl")], "validation": 0.2},
        "tune": {"init": str(base)},
        "train": {**TRAIN, **train},
    }
    if chat:
        table["task"] = {"kind": "chat", "template": str(folder / "chat.jinja")}
    else:
        (folder / "text.txt").write_text("a fox sees a nut.\n" * 50)
        table["data"] = {"files": [str(folder / "text.txt")], "separator": "\n"}
    (folder / "tune.json").write_text(json.dumps(table))
    return read(folder / "tune.json", words, model_of=config_of).recipe


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_begins_with_the_checkpoint_s_own_weights_and_words(tmp_path, base):
    lm = onehop.load(base)
    trainer = Trainer(tuned(tmp_path, base, chat=False))
    assert trainer.tokenizer.fingerprint == lm.tokenizer.fingerprint
    weights, own = trainer.model.state_dict(), lm.model.state_dict()
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], own[name]) for name in own)
    assert all(p.requires_grad for p in trainer.model.parameters())


@pytest.mark.parametrize("words", [[], ["tune.lora.rank=4"]], ids=["all of it", "adapters"])
def test_tuning_lowers_the_loss_on_chats_and_leaves_the_base_untouched(tmp_path, base, words):
    before, inputs = files(base), torch.arange(2 * 20).reshape(2, 20) + 5
    trainer = Trainer(tuned(tmp_path, base, *words))
    first = trainer.evaluate()
    list(trainer.steps())
    assert trainer.evaluate() < (0.99 if words else 0.8) * first  # 20 steps of a model that hardly knows a word
    trainer.save()
    assert files(base) == before
    saved = onehop.load(tmp_path / "out")
    assert saved.chat([{"role": "user", "content": "and then?"}], max_new_tokens=2).token_ids  # its template is saved
    with torch.no_grad():
        # float32: an adapter's sum is taken before or after the product
        torch.testing.assert_close(saved.model(inputs), trainer.model.eval()(inputs), rtol=0, atol=1e-5)
        if words:
            own = {n: p for n, p in trainer.model.named_parameters() if ".base." in n or n.endswith("norm.weight")}
            frozen = onehop.load(base).model.state_dict()
            assert all(torch.equal(p, frozen[name.replace(".base.", ".")]) for name, p in own.items())
            beside = onehop.load(base, adapter=tmp_path / "out" / ADAPTER)
            torch.testing.assert_close(beside.model(inputs), saved.model(inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("words", [["tune.lora.rank=2"], ["tune.freeze=embed.*"], ["tune.freeze=layers.0.*"]])
def test_a_tuned_run_is_taken_up_again_bit_for_bit(tmp_path, base, words):
    whole = Trainer(tuned(tmp_path, base, *words, "train.steps=6"))
    losses = [result.loss for result in whole.steps()]
    first = Trainer(tuned(tmp_path, base, *words, "train.steps=6"), fresh=True)
    head = [result.loss for _, result in zip(range(3), first.steps(), strict=False)]
    first.save()
    again = Trainer(tuned(tmp_path, base, *words, "train.steps=6"), resume=True)
    assert head + [result.loss for result in again.steps()] == losses
    own, wanted = again.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(own[name], wanted[name]) for name in wanted)
    with pytest.raises(ConfigError, match=r"tune\.\w+"):
        Trainer(tuned(tmp_path, base, *words, *["tune.lora.rank=3" if "lora" in words[0] else "tune.freeze=head.*"]),
                resume=True)  # fmt: skip


def test_a_checkpoint_of_adapters_is_of_its_moment_though_training_goes_on_while_it_is_written(
    tmp_path, base, monkeypatch
):
    """The write at step 2 waits for step 3. The sum and the adapters alone are those of step 2, in `out` of step 4."""
    real, reached, moments = saving.write_native, threading.Event(), {}

    def patient(*args, **more):
        assert reached.wait(60)
        return real(*args, **more)

    def after(self, result):
        after_step(self, result)
        moments[result.step] = {name: one.up.clone() for name, one in adapters_of(self.trainer.model).items()}
        if result.step == 3:
            reached.set()

    after_step = session.Session._after_step
    monkeypatch.setattr(saving, "write_native", patient)
    monkeypatch.setattr(session.Session, "_after_step", after)
    run = onehop.train(tuned(tmp_path, base, "tune.lora.rank=2", "train.steps=4", "train.save_every=2"))
    inputs = torch.arange(20).unsqueeze(0)
    for folder, step in ((run.out / "checkpoints" / "step-00000002", 2), (run.out, 4)):
        beside = onehop.load(base, adapter=folder / ADAPTER).model
        found = read_adapter(onehop.load(base).model, folder / ADAPTER)
        assert found.keys() == moments[step].keys()
        assert all(torch.equal(one.up, moments[step][name]) for name, one in found.items())
        # float32: an adapter's sum is taken before or after the product
        torch.testing.assert_close(onehop.load(folder).model(inputs), beside(inputs), rtol=0, atol=1e-5)
    assert not all(torch.equal(up, moments[4][name]) for name, up in moments[2].items())


@pytest.mark.parametrize("own", [["train.recompute=block"], ["train.optimizer=muon"], ["train.ema=0.5"]])
def test_adapters_learn_by_every_way_and_are_taken_up_again(tmp_path, base, own):
    words = ["tune.lora.rank=2", "train.steps=6", *own]
    whole = Trainer(tuned(tmp_path, base, *words))
    losses = [result.loss for result in whole.steps()]
    first = Trainer(tuned(tmp_path, base, *words), fresh=True)
    head = [result.loss for _, result in zip(range(3), first.steps(), strict=False)]
    first.save()
    again = Trainer(tuned(tmp_path, base, *words), resume=True)
    assert head + [result.loss for result in again.steps()] == losses


def test_the_average_of_adapters_is_saved_added_to_their_base(tmp_path, base):
    trainer = Trainer(tuned(tmp_path, base, "tune.lora.rank=2", "train.steps=6", "train.ema=0.5"))
    list(trainer.steps())
    trainer.save()
    inputs = torch.arange(20).unsqueeze(0)
    with torch.no_grad(), trainer.average.inside(trainer.model):
        wanted = trainer.model.eval()(inputs)
    averaged = onehop.load(trainer.out / "ema").model(inputs)
    # float32: an adapter's sum is taken before or after the product
    torch.testing.assert_close(averaged, wanted, rtol=0, atol=1e-5)
    assert not torch.allclose(averaged, onehop.load(trainer.out).model(inputs), rtol=0, atol=1e-4)


def test_damaged_adapters_are_a_damaged_checkpoint_and_fresh_forgets_them(tmp_path, base):
    words = ["tune.lora.rank=2", "train.steps=4"]
    run = Trainer(tuned(tmp_path, base, *words))
    for result in run.steps():
        if result.step in (2, 4):
            run.save()
    newest = run.out / "checkpoints" / "step-00000004"
    (newest / ADAPTER / "adapter_model.safetensors").unlink()
    again = Trainer(tuned(tmp_path, base, *words), resume=True)
    assert again.notes == [
        f"{newest} is damaged (adapter_model.safetensors is missing); going on from step 2"
    ]  # fmt: skip
    Trainer(tuned(tmp_path, base), fresh=True)
    assert not (run.out / ADAPTER).exists()


def test_adapters_are_not_taken_up_beside_another_base(tmp_path, base):
    shutil.copytree(base, tmp_path / "base")
    words = ["tune.lora.rank=2", "train.steps=2"]
    Trainer(tuned(tmp_path, tmp_path / "base", *words)).save()
    lm = onehop.load(tmp_path / "base")
    with torch.no_grad():
        lm.model.final_norm.weight.mul_(1.5)
    lm.save(tmp_path / "base", format="hf")
    with pytest.raises(ConfigError, match=r"cannot be resumed: the weights of tune\.init have changed\. Resume with"):
        Trainer(tuned(tmp_path, tmp_path / "base", *words), resume=True)


def test_what_is_frozen_stays_and_all_else_learns(tmp_path, base):
    trainer = Trainer(tuned(tmp_path, base, "tune.freeze=embed.*,layers.0.*", "train.steps=2"))
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    list(trainer.steps())
    stays = {name for name, p in trainer.model.named_parameters() if torch.equal(p, before[name])}
    assert stays == {name for name in before if name.startswith(("embed.", "layers.0."))}


def test_adapters_stand_where_they_are_asked_for(tmp_path, base):
    trainer = Trainer(tuned(tmp_path, base, "tune.lora.rank=2", "tune.lora.alpha=6", "tune.lora.targets=*.w[qv]"))
    found = adapters_of(trainer.model)
    assert set(found) == {f"layers.{i}.attention.w{x}" for i in range(2) for x in "qv"}
    assert {(a.down.size(0), a.scale) for a in found.values()} == {(2, 3.0)}


def test_a_pooled_model_is_trained_on(tmp_path, base):
    """Uptraining (arXiv:2305.13245, section 2.1): heads averaged by convert, then a run from there."""
    convert(base, tmp_path / "pooled", kv_heads=1)
    trainer = Trainer(tuned(tmp_path, tmp_path / "pooled", chat=False))
    assert trainer.recipe.model.blocks[0].attention.n_kv_heads == 1
    first = trainer.evaluate()
    list(trainer.steps())
    assert trainer.evaluate() < first


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["model.d_model=32"], "model.d_model=32 contradicts tune.init=.*, which has 16. Leave model.d_model out."),
        (["tune.freeze=embd.*"], "tune.freeze=embd.* names no parameter. Did you mean embed"),
        (["tune.freeze=*"], "freezes every parameter: nothing is left to learn"),
        (["tune.lora.rank=17"], r"tune.lora.rank=17 is more than any change of these maps .* They take at most 16\."),
        (["tune.lora.targets=*.wz"], r"tune.lora.targets=\*.wz names no linear map"),
        (["tune.lora.rank=4", "tune.freeze=embed.*"], "has no effect with tune.lora"),
        (["tune.lora.rank=4", "tune.init=none", "model.preset=tiny"], "it needs tune.init"),
        (["data.tokenizer=characters"], "data.tokenizer=characters has no effect with tune.init"),
        (["task.template=none"], "no chat template. Set task.template=FILE"),
        (["task.template=nowhere.jinja"], "task.template=nowhere.jinja cannot be read"),
        (["data.packing=stream"], "data.packing has no effect with task=chat"),
        (["train.width_transfer=8"], "train.width_transfer=8 says how fresh weights start, and those of tune.init="),
        (["data.documents=joined"], "data.documents has no effect with task=chat"),
        (["tune.init=nowhere"], "nowhere is no folder"),
    ],
)
def test_what_contradicts_the_checkpoint_is_refused(tmp_path, base, words, text):
    with pytest.raises(onehop.base.errors.OnehopError, match=text) as refused:
        Trainer(tuned(tmp_path, base, *words))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


ANSWERED = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": %s}'


@pytest.mark.parametrize("tools", ["null", "[]", '[{"type": "function", "function": {"name": "f"}}]'])
def test_a_conversation_may_say_which_tools_there_are(tmp_path, base, tools):
    asked = tuned(tmp_path, base)
    file = tmp_path / "chat.jsonl"
    before = len(file.read_text().splitlines())
    file.write_text(f"{file.read_text().strip()}\n{ANSWERED % tools}\n")
    trainer = Trainer(asked)
    assert trainer.data.train.n_documents + trainer.data.validation.n_documents == before + 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"text": "a"}', r"chat\.jsonl:2 has no messages \(it has text\)"),
        ('{"messages": [{"content": "a"}]}', r"chat\.jsonl:2: message 1 has no role"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "chat.jsonl:2: there is nothing to learn in it"),
        ("[1]", "chat.jsonl:2 holds no JSON object"),
        (ANSWERED % '"bad"', r'chat\.jsonl:2: tools is "bad"\. Give a list of objects'),
        (ANSWERED % '["bad"]', r'chat\.jsonl:2: tools is \["bad"\]\. Give a list of objects'),
        (ANSWERED % '{"name": "f"}', r"chat\.jsonl:2: tools is .*\. Give a list of objects"),
        ("{", "chat.jsonl:2 is not JSON"),
    ],
)
def test_a_line_that_is_no_conversation_is_refused_by_its_number(tmp_path, base, line, text):
    asked = tuned(tmp_path, base)
    file = tmp_path / "chat.jsonl"
    rows = file.read_text().splitlines()
    file.write_text("\n".join([rows[0], line, *rows[1:]]))
    with pytest.raises(DataError, match=text):
        Trainer(asked)


def test_a_trained_model_fine_tuned_on_chats_merges_to_base_and_adapter(tmp_path):
    """The same on weights that were trained for long, as people have them."""
    if not STORIES.is_dir():
        pytest.skip("the trained model is not beside this checkout")
    before, inputs = files(STORIES), torch.arange(2 * 30).reshape(2, 30) + 5
    for words in ([], ["tune.lora.rank=4"]):
        trainer = Trainer(tuned(tmp_path, STORIES, *words, "train.steps=15"), fresh=bool(words))
        first = trainer.evaluate()
        list(trainer.steps())
        assert trainer.evaluate() < 0.7 * first
        trainer.save()
    merged = onehop.load(tmp_path / "out").model(inputs)
    # 1e-5 of logits that reach 20
    torch.testing.assert_close(merged, trainer.model.eval()(inputs), rtol=1e-5, atol=1e-5)
    beside = onehop.load(STORIES, adapter=tmp_path / "out" / ADAPTER).model(inputs)
    torch.testing.assert_close(beside, merged, rtol=1e-5, atol=1e-5)
    assert files(STORIES) == before


def test_of_a_question_longer_than_the_model_only_the_end_is_answered_as_a_sample(tmp_path, base):
    wanted = tuned(tmp_path, base)
    row = {"messages": [{"role": "user", "content": "why? " * 90}, {"role": "assistant", "content": "so."}]}
    (tmp_path / "chat.jsonl").write_text("\n".join([json.dumps(row)] * 9))
    trainer = Trainer(wanted)
    assert len(trainer.lesson.prompt("")) > trainer.recipe.model.max_len
    assert len(trainer.sample_prompt()) == trainer.recipe.model.max_len - TRAIN["sample_tokens"]
    assert trainer.tokenizer.decode(trainer.sample_prompt()).endswith("A:")


def test_an_adapted_head_is_learned_chunk_by_chunk_as_at_once(tmp_path, base):
    words = ["tune.lora.rank=2", "tune.lora.targets=*", "train.steps=3"]
    for folder, more in (("whole", []), ("chunks", ["train.loss_chunk=16"])):
        (tmp_path / folder).mkdir()
        onehop.train(tuned(tmp_path / folder, base, *words, *more))
    whole, chunks = (
        [json.loads(line)["loss"] for line in (tmp_path / folder / "out" / "metrics.jsonl").read_text().splitlines()]
        for folder in ("whole", "chunks")
    )
    assert chunks == pytest.approx(whole, rel=1e-5)  # float32, sums in another order


def test_a_template_that_leaves_nothing_to_learn_is_refused(tmp_path, base):
    wanted = tuned(tmp_path, base)
    (tmp_path / "chat.jinja").write_text("always the same")
    with pytest.raises(DataError, match="the validation rows hold no token to predict"):
        Trainer(wanted)


def test_a_run_is_never_put_where_the_model_lies_that_it_goes_on_from(tmp_path, base):
    own = shutil.copytree(base, tmp_path / "out" / "inside")
    for fresh in (False, True):
        with pytest.raises(ConfigError, match=r"lies in out=.*would replace what it goes on from"):
            Trainer(tuned(tmp_path, own), fresh=fresh)
    assert files(own) == files(base)


def test_adapters_for_nothing_are_refused(tmp_path, base):
    with pytest.raises(ConfigError, match=r"tune\.lora\.targets"):
        tuned(tmp_path, base, "tune.lora.targets=")
