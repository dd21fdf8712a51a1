"""`onehop.plan(config)`: what a model costs, asked figure by figure, or all at once as the keys that --json prints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from onehop.base.errors import ConfigError
from onehop.base.units import human_bytes
from onehop.config.model import ModelConfig
from onehop.config.named import presets
from onehop.cost.activations import Run
from onehop.cost.devices import Device, Resident
from onehop.cost.flops import TRAINING, Flops, Pass, forward, next_token, reading
from onehop.cost.kv_cache import KVCache, kv_cache
from onehop.cost.memory import Training, TrainingPlan, training
from onehop.cost.numbers import MOST, bytes_per_weight, cache_bytes
from onehop.cost.parameters import Parameters, count
from onehop.cost.roofline import Phase, Work
from onehop.cost.scaling import for_model
from onehop.cost.serving import Inference, InferencePlan, inference, weight_bytes
from onehop.cost.traffic import attention_bytes, crossover
from onehop.cost.weights import Weight, weights


@dataclass(frozen=True)
class Asked:
    """What is asked of a model: how it is served, and how trained. `context` None: the model's max_len."""

    context: int | None = None
    batch: int = 1
    dtype: str = "bfloat16"
    cache_dtype: str | None = None
    train_rows: int = 1  # in one forward pass
    train_context: int | None = None
    precision: str = "bfloat16"
    micro_batches: int = 1
    optimizer: str = "adamw"
    recompute: str = "none"  # block, selective: what is computed again in backward
    loss_chunk: int | None = None
    tokens: float | None = None
    average: bool = False  # a moving average of the weights (train.ema)
    packed: bool = False  # rows of training hold several documents
    stored: float | None = None  # bytes of the weights where a file says them
    loads: str | None = None  # the type in which onehop loads these

    @property
    def caches(self) -> str:
        """The type of what the cache holds."""
        return InferencePlan(dtype=self.dtype, cache_dtype=self.cache_dtype).caches

    def __post_init__(self) -> None:
        for name in ("context", "batch", "train_rows", "train_context", "micro_batches", "loss_chunk", "tokens"):
            value = getattr(self, name)
            if value is not None:
                _need(name, value, least=1)
        bytes_per_weight(self.dtype)
        if self.cache_dtype is not None:
            cache_bytes(self.cache_dtype, 1, 1)  # refuses a type that it does not know
        if self.precision not in ("float32", "bfloat16", "float16"):
            raise ConfigError(
                f"precision={self.precision!r}: training is in float32, bfloat16 or float16. Use one of them."
            )
        if self.optimizer not in ("adamw", "muon"):
            raise ConfigError(f"optimizer={self.optimizer!r} does not exist. Use adamw or muon.")
        if self.recompute not in ("none", "block", "selective"):
            raise ConfigError(f"recompute={self.recompute!r} does not exist. Use none, block or selective.")


def _need(name: str, value: float, *, least: int) -> None:
    """Refuse what is below `least`, beyond all measure or no number."""
    if not least <= value:
        raise ConfigError(f"{name}={value}: needs {least} or more.")
    if value > MOST:
        raise ConfigError(f"{name} is above {MOST}, to which a plan counts. Ask for less.")


def plan(config: ModelConfig | str) -> "Plan":
    """What `config`, or the preset of that name, costs. Raises ConfigError for a config without vocab_size."""
    return Plan(presets[config] if isinstance(config, str) else config)


@dataclass(frozen=True)
class Plan:
    """A model's costs as arithmetic on its config. Bytes, FLOPs and seconds; sources in `onehop/cost/`."""

    config: ModelConfig

    @cached_property
    def weights(self) -> Sequence[Weight]:
        """Every parameter, by name and shape."""
        return weights(self.config)

    @cached_property
    def parameters(self) -> Parameters:
        """Counts of parameters."""
        return count(self.weights)

    def flops(self, *, new: int, past: int = 0, logits: int | None = None) -> Flops:
        """FLOPs of one row's forward pass over `new` tokens after `past` others; an encoder's source has as many."""
        _need("new", new, least=1)
        _need("past", past, least=0)
        _need("logits", 0 if logits is None else logits, least=0)
        source = past + new if self.config.encoder is not None else 0
        step = Pass(new, past, logits, source=source, read_before=past > 0)
        return forward(self.config, self.weights, step)

    def train_flops_per_token(self, context: int) -> float:
        """FLOPs of one token of a training step in rows of `context` tokens, hidden pairs included."""
        return TRAINING * self.flops(new=context).total / context

    def kv_cache(self, dtype: str = "bfloat16") -> KVCache:
        """What the cache keeps, by kinds of layers."""
        return kv_cache(self.config, dtype)

    def kv_cache_bytes(self, *, batch: int = 1, context: int, dtype: str = "bfloat16") -> int:
        """Bytes of the cache of `batch` texts of `context` tokens; an encoder's source has as many."""
        _need("batch", batch, least=1)
        _need("context", context, least=1)
        source = context if self.config.encoder is not None else 0
        return self.kv_cache(dtype).bytes(batch=batch, context=context, source=source)

    def training_memory(self, asked: Asked | None = None, *, on_cpu: bool = False) -> Training:
        """The peak of a training step."""
        asked = asked or Asked()
        how = TrainingPlan(
            self._run(asked, on_cpu),
            asked.micro_batches,
            asked.optimizer,
            asked.recompute,
            asked.loss_chunk,
            asked.average,
        )
        return training(self.config, self.weights, how)

    def inference_memory(self, asked: Asked | None = None, *, on_cpu: bool = False) -> Inference:
        """The peak of generation."""
        asked = asked or Asked()
        return inference(self.config, self.weights, self._served(asked, prepares=on_cpu))

    def needed(self, phase: str, asked: Asked, device: Device) -> float:
        """Bytes that training or inference takes of a device: the whole process's where known, else with margin."""
        if phase in device.resident:
            return self.resident(phase, asked, device.resident[phase])
        find = self.training_memory if phase == "training" else self.inference_memory
        return find(asked, on_cpu=device.kind == "cpu").total

    def resident(self, phase: str, asked: Asked, held: Resident) -> float:
        """Bytes that a process on this CPU holds in all: of weights in a file what they take once they are loaded."""
        if phase == "training":
            live = self.training_memory(asked, on_cpu=True).live
            return held.of(live, live)
        if asked.loads is not None and asked.stored is not None:
            asked = replace(asked, dtype=asked.loads, stored=None)
        served = self.inference_memory(asked, on_cpu=True)
        return held.of(served.live, served.prepared)

    def times(self, device: Device, asked: Asked | None = None) -> dict[str, Phase]:
        """Seconds on one device of a training step, of a prompt and of a further token (unless it sees both ways)."""
        asked = asked or Asked()
        work, on_cpu = Work(self.config, self.weights, device), device.kind == "cpu"
        served = self._served(asked)
        out = {
            "training": work.train(
                self._run(asked, on_cpu),
                micro_batches=asked.micro_batches,
                recompute=asked.recompute,
                optimizer=asked.optimizer,
            ),
            "prefill": work.prefill(served),
        }
        return out if self.config.both_ways else {**out, "decode": work.decode(served)}

    def missing(self) -> list[str]:
        """Figures that parts of the user's own leave out: everything they belong to is a lower bound."""
        found = [*self.parameters.missing, *self.flops(new=1).missing, *self.kv_cache().missing]
        return list(dict.fromkeys([*found, *self.training_memory().missing]))

    def as_dict(self, asked: Asked | None = None, *, device: Device | None = None) -> dict[str, Any]:
        """Everything, under the keys that docs/planner.md lists."""
        asked = asked or Asked()
        context, on_cpu = self.context(asked), device is not None and device.kind == "cpu"
        n = self.parameters
        out = {
            "params": _params(n),
            "flops": self._flops_dict(context, self.train_context(asked)),
            "attention": self._traffic_dict(context, asked),
            "kv_cache": self._cache_dict(context, asked),
            "memory": self._memory_dict(asked, on_cpu, {} if device is None else device.resident),
            "loss": [asdict(o) for o in for_model(n.active, n.active_non_embedding, asked.tokens)],
            "asked": {**asdict(asked), "context": context, "train_context": self.train_context(asked)},
            "vocab_size": self.config.need_vocab(),
            "missing": self.missing(),
        }
        if device is not None:
            if device.flops:
                out["time"] = _time_dict(self.times(device, asked))
            out["device"] = {key: getattr(device, key) for key in ("name", "memory", "bandwidth", "source")}
            phases = ("inference", "training")
            out["fits"] = {phase: self.needed(phase, asked, device) <= device.memory for phase in phases}
        return out

    @property
    def longest(self) -> int | None:
        """Tokens of the longest text that can be read: as many as there are learned positions; None: any."""
        learned = any(s is not None and s.embed.position == "learned" for s in (self.config, self.config.encoder))
        return self.config.max_len if learned else None

    def context(self, asked: Asked) -> int:
        """Tokens of a text that is asked about. Raises ConfigError for more than there are learned positions."""
        return self._readable("context", asked.context or self.config.max_len)

    def train_context(self, asked: Asked) -> int:
        """Tokens of a row of training: those asked for, or of a text, no more than the model's longest."""
        return self._readable("train.context", asked.train_context or min(self.context(asked), self.config.max_len))

    def _readable(self, name: str, tokens: int) -> int:
        _need("model.max_len" if tokens == self.config.max_len else name, tokens, least=1)
        if self.longest is not None and tokens > self.longest:
            raise ConfigError(
                f"{name}={tokens}: this model has learned positions for {self.longest} tokens. Ask for no more, or "
                f"give it as many with model.max_len={tokens}."
            )
        return tokens

    def notes(self, asked: Asked) -> list[str]:
        """What is to be known: a text longer than the model was made for, weights that are unpacked when loaded."""
        context, most = self.context(asked), self.config.max_len
        beyond = f"{context} tokens are beyond max_len={most}, for which the model was made"
        found = [beyond] if context > most else []
        if asked.loads is not None and asked.stored is not None:
            nbytes = weight_bytes(self.weights, asked.loads)
            if nbytes > 1.01 * asked.stored:
                found.append(f"onehop loads these weights in {asked.loads}, where they take {human_bytes(nbytes)}")
        return found

    def _run(self, asked: Asked, on_cpu: bool) -> Run:
        return Run(asked.train_rows, self.train_context(asked), asked.precision, on_cpu, asked.packed)

    def _served(self, asked: Asked, *, prepares: bool = False) -> InferencePlan:
        context = self.context(asked)
        source = context if self.config.encoder is not None else 0
        options = {name: getattr(asked, name) for name in ("batch", "dtype", "cache_dtype", "stored")}
        return InferencePlan(context=context, source=source, prepares=prepares, **options)

    def _flops_dict(self, context: int, train_context: int) -> dict[str, Any]:
        trained = self.flops(new=train_context)
        read, decoded = (
            forward(self.config, self.weights, step(self.config, context)) for step in (reading, next_token)
        )
        out = {
            "train_per_token": TRAINING * trained.total / train_context,
            "train_per_token_products": TRAINING * trained.products / train_context,
            "train_per_token_attention": TRAINING * trained.attention / train_context,
            "train_per_token_attention_causal": TRAINING * trained.attention_seen / train_context,
            "train_per_token_6n": 6.0 * self.parameters.active,
            "prefill": read.total,
            "prefill_attention": read.attention,
            "prefill_attention_causal": read.attention_seen,
        }
        if not self.config.both_ways:
            out |= {"decode_per_token": decoded.total, "decode_per_token_attention": decoded.attention}
        return out

    def _traffic_dict(self, context: int, asked: Asked) -> dict[str, Any]:
        size = bytes_per_weight(self._served(asked).computes)
        plain, tiled = attention_bytes(self.config, context, size)
        return {"plain_bytes": plain, "tiled_bytes": tiled, "crossover_tokens": crossover(self.config, size)}

    def _cache_dict(self, context: int, asked: Asked) -> dict[str, Any]:
        dtype = asked.caches
        cache = self.kv_cache(dtype)
        layers = [
            {"kind": k.kind, "layers": k.n_layers, "window": k.window, "bytes_per_token": k.bytes_per_token}
            for k in cache.layers
        ]
        total = self.kv_cache_bytes(batch=asked.batch, context=context, dtype=dtype)
        return {
            "dtype": dtype,
            "bytes_per_token": cache.bytes_per_token,
            "bytes": total,
            "cross_bytes_per_token": cache.cross_bytes_per_token,
            "by_kind": layers,
        }

    def _memory_dict(self, asked: Asked, on_cpu: bool, resident: Mapping[str, Resident]) -> dict[str, Any]:
        trained, served = self.training_memory(asked, on_cpu=on_cpu), self.inference_memory(asked, on_cpu=on_cpu)
        names = ("weights", "gradients", "optimizer", "activations", "logits", "working", "live", "margin")
        return {
            **{f"{phase}_resident_bytes": self.resident(phase, asked, one) for phase, one in resident.items()},
            "training_bytes": trained.total,
            "training": {**{name: getattr(trained, name) for name in names}, "peak_at": trained.peak_at},
            "activation_bytes_by_layer": trained.blocks,
            "inference_bytes": served.total,
            "inference": {
                name: getattr(served, name) for name in ("weights", "kv_cache", "working", "prepared", "live", "margin")
            },
        }


def _params(found: Parameters) -> dict[str, Any]:
    out = asdict(found)
    out.pop("missing")
    return out


def _time_dict(phases: dict[str, Phase]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, phase in phases.items():
        out[f"{name}_tokens_per_s"] = phase.tokens_per_s
        out[f"{name}_s"] = phase.seconds
        out[f"{name}_bound_by"] = phase.bound_by
    return out
