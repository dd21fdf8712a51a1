"""Where the time of a run goes: into steps, into the compiler, into all besides."""

import time

from onehop.base.units import human_time
from onehop.training.trainer import Trainer

BESIDES = "all besides (evaluations, samples, pictures, saves, questions)"


class Meter:
    """Tokens per second since the last look, without waits for the compiler. `rate`: what that look saw."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.rate = trainer, 0.0
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._clock, self._waited, self._targets = time.perf_counter(), self.trainer.waited, 0

    def count(self, targets: int) -> None:
        """A step with so many targets was taken."""
        self._targets += targets

    def look(self) -> None:
        """Take the rate."""
        seconds = time.perf_counter() - self._clock - (self.trainer.waited - self._waited)
        self.rate = self._targets / max(seconds, 1e-9)


class Took:
    """The seconds of one call of `train`, from when this is made."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.first, self._began = trainer, trainer.progress, time.perf_counter()

    @property
    def seconds(self) -> float:
        """All of them."""
        return time.perf_counter() - self._began

    @property
    def in_steps(self) -> float:
        """Those in steps, without waits for the compiler."""
        return max(self.trainer.progress.seconds - self.first.seconds - self.trainer.waited, 0.0)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of a second in steps; of the whole run where this call took no step, None where there was none."""
        p, first = self.trainer.progress, self.first
        if p.step == first.step:
            return p.tokens / p.seconds if p.tokens and p.seconds else None
        return (p.tokens - first.tokens) / self.in_steps if p.tokens > first.tokens and self.in_steps else None

    def __str__(self) -> str:
        waited = self.trainer.waited
        compiling = f", {human_time(waited)} compiling" if waited else ""
        besides = max(self.seconds - self.in_steps - waited, 0.0)
        return f"{human_time(self.in_steps)} in steps{compiling}, {human_time(besides)} for {BESIDES}"
