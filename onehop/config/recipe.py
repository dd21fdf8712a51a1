"""A recipe: the model, the text, and how to train the one on the other."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from onehop.config.data import DataConfig
from onehop.config.effect import Listens, without_effect
from onehop.config.ffn import GatedConfig, PlainConfig
from onehop.config.model import EncoderConfig, ModelConfig
from onehop.config.part import Part, as_tuple, broken_rule
from onehop.config.task import NextConfig, Task, misfits
from onehop.config.tune import TuneConfig

Kernel = Literal["auto", "plain", "tiled", "fused"]
Role = Literal["matrices", "embeddings", "head", "norms", "biases"]
Roles = Annotated[tuple[Role, ...], BeforeValidator(as_tuple)]


class TrainConfig(Part):
    """One training run."""

    steps: int = Field(ge=0, description="optimizer steps")
    batch_size: int = Field(ge=1, description="rows per step")
    micro_batch: int | None = Field(
        None, ge=1, description="rows per forward pass; must divide batch_size; none: all at once"
    )
    context: int | None = Field(None, ge=2, description="tokens per row; none: model.max_len")
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="what moves the weights; muon: the hidden matrices by Muon, all else by AdamW"
    )
    lr: float = Field(1e-3, gt=0, description="highest learning rate")
    lr_end: float = Field(0.1, ge=0, le=1, description="last learning rate as a share of the highest")
    warmup: int = Field(
        0, ge=0, description="steps over which the learning rate rises from zero; a shorter run ends while it rises"
    )
    weight_decay: float = Field(0.1, ge=0, description="decoupled weight decay of the roles in weight_decay_on")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's two decay rates")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon")
    weight_decay_on: Roles = Field(
        ("matrices", "embeddings", "head"),
        description="what decays: matrices, embeddings, head, norms, biases (and tables of position biases)",
    )
    schedule: Literal["cosine", "wsd", "linear", "constant"] = Field(
        "cosine", description="the learning rate after the warm-up; wsd: constant, and a decay at the end"
    )
    decay: float = Field(
        0.2, gt=0, description="wsd: the last steps, which decay: a share of all (below 1) or a number"
    )
    decay_shape: Literal["linear", "cosine", "sqrt"] = Field(
        "linear", description="wsd: how it falls; sqrt: by 1 - sqrt(progress), soonest at first"
    )
    batch_start: int | None = Field(
        None, ge=1, description="rows of the first step, whole micro-batches; none: batch_size from the start"
    )
    batch_warmup: int = Field(0, ge=0, description="steps over which the rows grow from batch_start to batch_size")
    ema: float | None = Field(
        None, gt=0, lt=1, description="decay of a moving average of the weights, evaluated and saved too; none: none"
    )
    z_loss: float = Field(0.0, ge=0, description="weight of the squared log-sum-exp of the logits in the loss")
    width_transfer: int | None = Field(
        None,
        ge=1,
        description="base width for which lr was found: rates, init and logits follow d_model (muP); none: no",
    )
    recompute: Literal["none", "selective", "block"] = Field(
        "none",
        description="what backward computes again instead of keeping: all but products and attention; whole blocks",
    )
    loss_chunk: int | None = Field(
        None, ge=1, description="tokens whose logits are held at once in the loss; none: those of all"
    )
    compile: Literal["auto", "yes", "no"] = Field(
        "auto", description="torch.compile for the loss of a batch; auto: on a GPU, and for long runs on a CPU"
    )
    clip: float | None = Field(1.0, gt=0, description="largest gradient norm; none: not clipped")
    seed: int = Field(0, ge=0, lt=2**63, description="of the weights, the order of the rows and dropout")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="where to train")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="bfloat16 or float16: matrix products in it (float16: with a scaled loss), weights in float32; "
        "auto: bfloat16 where it is faster",
    )
    kernel: Kernel = Field("auto", description="attention kernel")
    eval_every: int = Field(250, ge=1, description="steps between evaluations; there is always one at the end")
    eval_rows: int = Field(256, ge=1, description="validation rows per evaluation, always the same")
    save_every: int | None = Field(
        None, ge=1, description="steps between checkpoints, beside those at a new best; none: at each evaluation"
    )
    log_every: int = Field(10, ge=1, description="steps between lines of metrics.jsonl")
    sample: str = Field("", description="prompt of the sample text that each evaluation writes")
    sample_tokens: int = Field(120, ge=0, description="length of the sample text; 0: none")
    keep: int = Field(2, ge=1, description="newest checkpoints that stay, beside the best by validation loss")
    deterministic: bool = Field(
        False, description="only algorithms that repeat bit for bit, the same run from the same seed; refuses others"
    )
    max_skipped: int = Field(20, ge=1, description="steps in a row without finite gradients that end the run")
    spike: float | None = Field(
        6.0,
        gt=0,
        description="standard deviations above its running mean at which a loss is called a spike; none: never",
    )
    dead_after: int = Field(100, ge=1, description="steps without a token after which an expert is called dead")
    measure_peak: bool = Field(
        True, description="time large matrix products before the first step, to tell which share of them a run reaches"
    )
    tensorboard: bool = Field(False, description="write the numbers of metrics.jsonl as TensorBoard events too")
    wandb: Literal["no", "offline", "online"] = Field(
        "no", description="write them for Weights & Biases too; offline: into the run's folder, and nothing is sent"
    )

    @model_validator(mode="after")
    def _fits(self) -> "TrainConfig":
        if self.micro_batch is not None and self.batch_size % self.micro_batch:
            raise broken_rule(
                f"micro_batch={self.micro_batch} must divide train.batch_size={self.batch_size}. "
                "Every row has to be seen once per step."
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise broken_rule(f"betas={self.betas} must lie in [0, 1). Use 0.9,0.95.")
        for text in (*self._faults(), *without_effect(self, rows=TRAIN_LISTENS)):
            raise broken_rule(text)
        return self

    def writes(self, step: int) -> bool:
        """Whether a line of metrics.jsonl is due after this step (from 1)."""
        return step in (1, self.steps) or step % self.log_every == 0 or step % self.eval_every == 0

    def _faults(self) -> Iterator[str]:
        if self.decay >= 1 and self.decay != int(self.decay):
            yield f"decay={self.decay:g} is neither a share nor a number of steps. Use 0.2, or {int(self.decay)}."
        if (self.batch_start is None) != (self.batch_warmup == 0):
            yield (
                f"batch_start={self.batch_start or 'none'} and train.batch_warmup={self.batch_warmup} go together: the "
                "rows of the first step, and the steps over which they grow. Give both or neither."
            )
        micro = self.micro_batch or self.batch_size
        if self.batch_start is not None and (self.batch_start > self.batch_size or self.batch_start % micro):
            yield (
                f"batch_start={self.batch_start} must be whole micro-batches of {micro} rows, up to "
                f"train.batch_size={self.batch_size}. Set train.micro_batch=M to a divisor of both."
            )
        if self.width_transfer is not None and self.optimizer != "adamw":
            yield (
                f"width_transfer={self.width_transfer} follows the rules of AdamW's steps, and "
                f"train.optimizer={self.optimizer} takes others. Use train.optimizer=adamw."
            )


def _decays_something(train: TrainConfig) -> bool:
    return bool(train.weight_decay_on) or train.weight_decay == 0


TRAIN_LISTENS = [
    Listens(TrainConfig, "lr_end", lambda train: train.schedule != "constant", "schedule=cosine, wsd or linear"),
    Listens(TrainConfig, "decay", lambda train: train.schedule == "wsd", "schedule=wsd"),
    Listens(TrainConfig, "decay_shape", lambda train: train.schedule == "wsd", "schedule=wsd"),
    Listens(TrainConfig, "weight_decay", _decays_something, "weight_decay_on"),
    Listens(TrainConfig, "sample", lambda train: train.sample_tokens > 0, "sample_tokens above 0"),
    Listens(TrainConfig, "weight_decay_on", lambda train: train.weight_decay > 0, "weight_decay above 0"),
]


class Recipe(Part):
    """Everything that decides a run; the resolved one is saved beside each result."""

    out: str = Field("out", min_length=1, description="folder of the run")
    about: str = Field("", description="what the recipe is for")
    model: ModelConfig
    data: DataConfig
    task: Task = Field(default_factory=NextConfig, description="what is learned from the text")
    tune: TuneConfig = Field(default_factory=TuneConfig, description="going on from a model that is trained already")
    train: TrainConfig

    @model_validator(mode="after")
    def _fits(self) -> "Recipe":
        for text in self._faults():
            raise broken_rule(text)
        return self

    def _faults(self) -> Iterator[str]:
        model, data, train = self.model, self.data, self.train
        if train.context is not None and train.context > model.max_len:
            yield (
                f"train.context={train.context} is longer than model.max_len={model.max_len}. "
                "Shorten the rows or raise model.max_len."
            )
        if data.corpus is None and not data.files and not data.mixture:
            yield "data.files and data.corpus are left out: no text. Set data.files=FILE,… or data.corpus=fables."
        if self.tune.init is not None and data.tokenizer in ("bpe", "characters"):
            for key in ("tokenizer", "vocab_size"):
                if getattr(data, key) != DataConfig.model_fields[key].default:
                    yield (
                        f"data.{key}={getattr(data, key)} has no effect with tune.init={self.tune.init}, whose own "
                        f"tokenizer is used. Leave data.{key} out."
                    )
        yield from misfits(self.task, model, data)
        if self.task.both_ways and train.sample:
            yield (
                f"train.sample={train.sample!r} has no effect with task={self.task.kind}: such a model goes on with no "
                "text. Leave it out."
            )
        if self.task.encoder and train.compile == "yes":
            yield (
                f"train.compile=yes compiles for one shape of batches, and with task={self.task.kind} each is as "
                "wide as its longest row. Leave it out."
            )
        if train.width_transfer is not None:
            yield from self._misfits_of_width(train.width_transfer)
        idle = TrainConfig.model_fields["dead_after"].default
        blocks = [block for stack in self._stacks() for block in stack.layers()]
        if train.dead_after != idle and all(isinstance(block.ffn, PlainConfig | GatedConfig) for block in blocks):
            yield (
                f"train.dead_after={train.dead_after} has no effect: this model has no experts. Leave it out (or "
                f"dead_after={idle})."
            )

    def _stacks(self) -> list[ModelConfig | EncoderConfig]:
        return [stack for stack in (self.model, self.model.encoder) if stack is not None]

    def _misfits_of_width(self, base: int) -> Iterator[str]:
        """Where the rules of `train.width_transfer` do not hold."""
        stacks = self._stacks()
        latent = any(block.attention.kind == "latent" for stack in stacks for block in stack.layers())
        if latent or any(stack.embed.width is not None for stack in stacks):
            yield (
                f"train.width_transfer={base} counts on maps whose inputs all grow with model.d_model, "
                f"and {'latent attention' if latent else 'model.embed.width'} has one that does not. Leave one out."
            )
        if self.tune.init is not None:
            yield (
                f"train.width_transfer={base} says how fresh weights start, and those of tune.init={self.tune.init} "
                "are trained. Leave one out."
            )
