"""Scaling laws, each by its name: the loss from parameters N and tokens D, and the best N and D for a budget.

L(N, D) = E + A / N^α + B / D^β (Hoffmann et al. 2022, arXiv:2203.15556, equation 2), in nats per token of the law's own
text and tokenizer: the differences between sizes carry over to other text, the numbers do not. C = 6·N·D FLOPs.
"""

from dataclasses import dataclass

from onehop.base.errors import ConfigError, did_you_mean

PF_DAY = 1e15 * 86400  # FLOPs
FLOPS_PER_PARAMETER = 6  # and token: Kaplan et al. 2020, arXiv:2001.08361, section 2.1


@dataclass(frozen=True)
class Law:
    """The parametric form with one set of constants."""

    name: str
    e: float
    a: float
    b: float
    alpha: float
    beta: float
    source: str

    def loss(self, n: float, d: float) -> float:
        """Nats per token after `d` tokens with `n` parameters."""
        return self.e + self.a / n**self.alpha + self.b / d**self.beta

    def optimum(self, flops: float) -> tuple[float, float]:
        """The N and D of least loss with 6·N·D = `flops` (ibid., equation 4)."""
        ratio, share = self._optimal()
        product = flops / FLOPS_PER_PARAMETER
        return ratio * product**share, product ** (1 - share) / ratio

    def tokens_for(self, n: float) -> float:
        """The tokens for which `n` parameters are the best use of their budget."""
        ratio, share = self._optimal()
        return (n / ratio) ** (1 / share) / n

    def _optimal(self) -> tuple[float, float]:
        """G and a of N = G · (C/6)^a (ibid., equation 4)."""
        ratio = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        return ratio, self.beta / (self.alpha + self.beta)


@dataclass(frozen=True)
class KaplanLaw:
    """Kaplan et al. 2020, arXiv:2001.08361: L(N, D) of equation 1.5, and N ∝ C^0.73 of equation 1.7.

    N leaves embeddings out. The loss has the constants of the joint fit (table 2); the optimum grows by the exponent of
    equation 1.7 from 1.3e9 parameters at one PF-day (table 6), and D is what 6·N·D = C leaves.
    """

    name: str = "kaplan"
    alpha_n: float = 0.076
    alpha_d: float = 0.103
    n_c: float = 6.4e13
    d_c: float = 1.8e13
    source: str = "Kaplan et al. 2020, arXiv:2001.08361, equations 1.5 and 1.7, tables 2 and 6"

    def loss(self, n: float, d: float) -> float:
        """Nats per token after `d` tokens with `n` parameters (embeddings left out)."""
        return ((self.n_c / n) ** (self.alpha_n / self.alpha_d) + self.d_c / d) ** self.alpha_d

    def optimum(self, flops: float) -> tuple[float, float]:
        """The N that its authors would train, and the tokens that the budget leaves it."""
        n = 1.3e9 * (flops / PF_DAY) ** 0.73
        return n, flops / (FLOPS_PER_PARAMETER * n)

    def tokens_for(self, n: float) -> float:
        """The tokens for which `n` parameters are what its authors would train."""
        return PF_DAY * (n / 1.3e9) ** (1 / 0.73) / (FLOPS_PER_PARAMETER * n)


LAWS: tuple[Law | KaplanLaw, ...] = (
    Law(
        "chinchilla", 1.69, 406.4, 410.7, 0.34, 0.28, "Hoffmann et al. 2022, arXiv:2203.15556, equation 10, as printed"
    ),
    Law("chinchilla-tex", 1.6934, 406.4, 410.7, 0.3392, 0.2849, "ibid., the four decimals in its TeX source"),
    Law("replication", 1.8172, 482.01, 2085.43, 0.3478, 0.3658, "Besiroglu et al. 2024, arXiv:2404.10102, table 1"),
    KaplanLaw(),
)
DEFAULT = "replication"


def law(name: str) -> Law | KaplanLaw:
    """A law by its name. Raises ConfigError with the nearest one."""
    known = {found.name: found for found in LAWS}
    if name not in known:
        raise ConfigError(f"the scaling law {name!r} does not exist. {did_you_mean(name, known)}")
    return known[name]


@dataclass(frozen=True)
class Outcome:
    """What one law says about a budget, or about a model and its tokens.

    `over_training`: how many times the tokens for which a model of that size is the best.
    """

    law: str
    parameters: float
    tokens: float
    loss: float
    over_training: float = 1.0

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens for each parameter."""
        return self.tokens / self.parameters


def for_budget(flops: float) -> list[Outcome]:
    """The best use of a budget under each law."""
    out = []
    for found in LAWS:
        n, d = found.optimum(flops)
        out.append(Outcome(found.name, n, d, found.loss(n, d)))
    return out


def for_model(active: float, non_embedding: float, tokens: float | None) -> list[Outcome]:
    """The loss under each law after `tokens` tokens, or after those for which the model's size is the best.

    `active` parameters are those that a token meets, `non_embedding` those of them that are in no embedding.
    """
    out = []
    for found in LAWS:
        n = non_embedding if isinstance(found, KaplanLaw) else active
        best = found.tokens_for(n)
        d = best if tokens is None else tokens
        out.append(Outcome(found.name, n, d, found.loss(n, d), over_training=d / best))
    return out


def spread(outcomes: list[Outcome]) -> dict[str, float]:
    """How far the laws lie apart: the largest over the smallest of parameters and tokens, the difference of losses."""
    n, d, loss = ([getattr(o, key) for o in outcomes] for key in ("parameters", "tokens", "loss"))
    return {
        "parameters_ratio": max(n) / min(n),
        "tokens_ratio": max(d) / min(d),
        "loss_difference": max(loss) - min(loss),
    }


@dataclass(frozen=True)
class Served:
    """A smaller model, trained for longer, that reaches the loss of the optimum, and is cheaper once it answers."""

    parameters: float
    tokens: float
    training_flops: float
    total_flops: float
    over_training: float  # tokens per parameter over those of the optimum for this size


def for_serving(found: Law, flops: float, served_tokens: float) -> Served:
    """The cheapest model, training and `served_tokens` answers (2·N each) together, of the loss that `flops` buys.

    Sardana et al. 2023, arXiv:2401.00448, equation 3.
    """
    n_best, d_best = found.optimum(flops)
    wanted = found.loss(n_best, d_best)
    best: Served | None = None
    for step in range(1, 2001):
        n = n_best * 10 ** (-step / 1000 + 0.001)
        left = wanted - found.e - found.a / n**found.alpha
        if left <= 0:
            break
        d = (found.b / left) ** (1 / found.beta)
        trained = FLOPS_PER_PARAMETER * n * d
        total = trained + 2 * n * served_tokens
        if best is None or total < best.total_flops:
            best = Served(n, d, trained, total, d / found.tokens_for(n))
    assert best is not None, "the optimum itself is among them"
    return best
