"""A model on trial: its texts, the truth about them, and what each path is allowed to differ by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from onehop.base.errors import RequestError
from onehop.generate.request import LARGEST_SEED
from onehop.lm.language_model import LanguageModel
from onehop.lm.yardstick import FLOOR, Comparison, Laid, Part, Truth, allowed, heard, run_in, truth_of
from onehop.model.taps import listen
from onehop.parts.linear import unpack

LENGTH = 48  # tokens of the texts that are compared, where no window asks for more
LONGEST = 1024  # the longest that is taken to look beyond a window
SOURCE = 7  # tokens of an encoder's source

Pass = tuple[Laid, Callable[..., Any]]  # where its tokens come from, and the call, which takes listener=


@dataclass(frozen=True)
class Finding:
    """The worst difference and what is allowed there, in units of the dtype's eps; worst None: nothing to compare.

    where: the first activation over what is allowed or, where none is, the one that comes nearest to it.
    """

    worst: float | None
    tolerance: float = 0.0
    reason: str = ""
    note: str = ""
    where: str = ""
    unit: str = ""

    @property
    def passed(self) -> bool | None:
        """Whether it is within what is allowed (not so for NaN); None: nothing to compare."""
        return None if self.worst is None else self.worst <= self.tolerance


def skipped(why: str) -> Finding:
    """Nothing to compare."""
    return Finding(None, note=why)


def simply(right: bool, note: str, *, where: str = "", reason: str = "") -> Finding:
    """A check that measures nothing."""
    return Finding(0.0 if right else float("inf"), 0.0, reason, note, where)


class Probe:
    """A model and random texts to compare it on: one of `length` tokens and two short ones."""

    def __init__(self, lm: LanguageModel, *, length: int | None = None, seed: int = 0):
        if not 0 <= seed <= LARGEST_SEED:
            raise RequestError(f"seed={seed} must be a whole number, 0 to {LARGEST_SEED}")
        if length is not None and length < 1:
            raise RequestError(f"length={length} must be a number of tokens, 1 or more")
        self.lm, self.model = lm, lm.model
        weight = self.model.embed.tokens.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.length = self._taken(length)
        generator = torch.Generator().manual_seed(seed)
        shape = (3, self.length)
        self.tokens = torch.randint(lm.limits.n_ids, shape, generator=generator).to(self.device)  # (3, T)
        self.source = torch.randint(lm.limits.n_ids, (3, SOURCE), generator=generator).to(self.device)  # (3, S)
        self._truths: dict[tuple[int, int, int], Truth] = {}

    @property
    def short(self) -> int:
        """Tokens of the texts that are compared in batches."""
        return min(self.length, LENGTH)

    @property
    def unit(self) -> str:
        """What differences are counted in."""
        return unit(self.dtype)

    def part(self, row: int, start: int, stop: int) -> Part:
        """The tokens start … stop of text `row` in the truth about its first `stop` tokens (or about all of it)."""
        if self._causal:
            whole = self.length if row == 0 else self.short
            return Part(self._truth(row, whole, SOURCE), 0, start, stop)
        return Part(self._truth(row, stop, SOURCE), 0, start, stop)

    def sourced(self, row: int, source: int, stop: int) -> tuple[Part, Part]:
        """`stop` tokens after `source` tokens of the source `row`, and those of the source."""
        truth = self._truth(row, stop, source)
        return Part(truth, 0, 0, stop), Part(truth, 0, 0, source)

    def inputs(self, row: int, length: int, source: int = SOURCE) -> tuple[Tensor, ...]:
        """What a pass over the first tokens of a text reads."""
        tokens = self.tokens[row : row + 1, :length]
        return (tokens,) if self.model.encoder is None else (self.source[row : row + 1, :source], tokens)

    def whole(self, row: int = 0, length: int | None = None) -> Laid:
        """One text in one pass."""
        n = length or self.length
        part = self.part(row, 0, n)
        return Laid([[part]], [[Part(part.truth, 0, 0, SOURCE)]])

    def compared(self, passes: Sequence[Pass], *, note: str = "") -> Finding:
        """What the passes of a path differ by from the truth."""
        return judged(self.measured(passes), self.lost, unit=self.unit, order=heard(self.model), note=note)

    def measured(self, passes: Sequence[Pass]) -> dict[str, float]:
        """The largest differences of a path, by activation."""
        comparison = Comparison(torch.finfo(self.dtype).eps)
        with listen(self.model, heard(self.model), comparison.edit) as ear:
            for laid, call in passes:
                comparison.laid = laid
                call(listener=ear)
        return comparison.worst

    @cached_property
    def lost(self) -> Mapping[str, float]:
        """What the plain definition itself loses to rounding, by activation, in units of eps.

        In float64 there is no wider type to measure it by: what float32 loses, in its own units, stands for it.
        """
        if self.dtype == torch.float64:
            return self.lost_in(torch.float32)
        unpack(self.model)
        return self.measured([self.plainly("plain"), self.plainly("plain", row=1), self.plainly("plain", row=2)])

    def plainly(self, kernel: str, *, row: int = 0) -> Pass:
        """A text by itself in one pass: the long one, or one of the short ones."""
        n = self.length if row == 0 else self.short
        return self.whole(row, n), partial(self.model, *self.inputs(row, n), kernel=kernel)

    def lost_in(self, dtype: torch.dtype, laid: Laid | None = None) -> dict[str, float]:
        """The same of the plain definition with its weights in another dtype, one layer at a time."""
        comparison = Comparison(torch.finfo(dtype).eps)
        for row in range(3 if laid is None else 1):
            n = self.length if row == 0 else self.short
            comparison.laid = laid or self.whole(row, n)
            run_in(self.model, dtype, comparison.edit, *self.inputs(row, n))
        return comparison.worst

    def _truth(self, row: int, length: int, source: int) -> Truth:
        key = (row, length, source)
        if key not in self._truths:
            self._truths[key] = truth_of(self.model, *self.inputs(row, length, source))
        return self._truths[key]

    @property
    def _causal(self) -> bool:
        """Whether a text's beginning is the same whatever follows it."""
        return all(block.attention.sees == "causal" for block in self.model.config.blocks)

    def _taken(self, length: int | None) -> int:
        """The length of the longest text; one that is asked for and cannot be is refused."""
        longest = min(self._longest())
        if length is None:
            return min(self._beyond_windows(), longest)
        if length > longest:
            whole = longest == self.model.config.max_len
            why = "the model's longest text" if whole else "beyond which a text's first angles change as it grows"
            raise RequestError(f"length={length} is more than {longest}, {why}. Give {longest} or less.")
        return length

    def _beyond_windows(self) -> int:
        """So many tokens that a few lie beyond the widest window, where that is not too many."""
        windows = [block.attention.window or 0 for block in self.model.config.blocks]
        reaching = [w + 16 for w in windows if w + 16 <= LONGEST]
        return max(LENGTH, *reaching) if reaching else LENGTH

    def _longest(self) -> list[int]:
        """The context, and lengths up to which a text's first angles do not depend on how long it becomes."""
        changing: list[Any] = [scheme for scheme in self.model.schemes if scheme.by_length]
        return [self.model.config.max_len, *(scheme.cfg.scaling.original_max_len for scheme in changing)]


def judged(
    worst: Mapping[str, float], lost: Mapping[str, float], *, unit: str, order: Sequence[str], note: str = ""
) -> Finding:
    """The first activation over what is allowed; else the one that comes nearest to it."""
    bounds = allowed(lost)
    names = [name for name in order if name in worst]
    first = next((name for name in names if not worst[name] <= bounds[name]), None)
    at = first or max(names, key=lambda name: worst[name] / max(bounds[name], FLOOR))
    reason = f"3 × the {lost[at]:.2g} {unit} that the definition itself loses there to rounding, and 1"
    return Finding(worst[at], bounds[at], reason, note, at, unit)


def unit(dtype: torch.dtype) -> str:
    """The name of one eps of a dtype."""
    return f"eps of {str(dtype).removeprefix('torch.')}"
