"""How fast this machine is at what a transformer does: products by width and rows, attention, passes over memory.

Rates of products are those of the functions that are handed in, which are onehop's own (`parts/linear.py`), so that a
prediction speaks of what will run. Each is the mean of several tries, what else the machine does included.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Prepared = Callable[[Tensor], Tensor]  # x (rows, in) -> (rows, out)
ROWS = (1, 4, 16, 64, 256, 1024)
TRAINED_ROWS = (64, 256, 1024, 4096)


class Bench:
    """A stopwatch: `tries` tries of at least `shortest` seconds each, of which `pick` takes one."""

    def __init__(
        self,
        *,
        tries: int = 5,
        shortest: float = 0.03,
        device: str = "cpu",
        pick: Callable[[list[float]], float] = statistics.fmean,
    ):
        self.tries, self.shortest, self.device, self.pick = tries, shortest, device, pick

    def seconds(self, call: Callable[[], Any]) -> float:
        """Seconds of one call, over tries of as many calls as fill `shortest`."""
        self._run(call, 1)
        once = self._run(call, 1)
        n = max(1, round(self.shortest / max(once, 1e-9)))
        return self.pick([self._run(call, n) / n for _ in range(self.tries)])

    def _run(self, call: Callable[[], Any], n: int) -> float:
        self._wait()
        began = time.perf_counter()
        for _ in range(n):
            call()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def read_bandwidth(bench: Bench, *, nbytes: int = 1 << 29) -> float:
    """bytes/s at which memory beyond all caches is read."""
    x = torch.ones(nbytes // 4, device=bench.device)
    return nbytes / bench.seconds(x.sum)


def pass_bandwidth(bench: Bench, *, nbytes: int = 1 << 22, held: int = 1 << 27) -> float:
    """bytes/s of an operation number by number on tensors as large as a layer's activations: two read, one written.

    `held` bytes of them take turns: kept for a gradient they have left the caches when it comes.
    """
    pairs = [
        [torch.ones(nbytes // 4, device=bench.device) for _ in range(2)] for _ in range(max(1, held // nbytes // 2))
    ]

    def call() -> None:
        for a, b in pairs:
            a * b

    return 3 * nbytes * len(pairs) / bench.seconds(call)


def function_rates(bench: Bench, function: Callable[[Tensor], Tensor], *, numbers: int = 1 << 20) -> dict[str, float]:
    """Numbers/s that go through an activation function, and through its gradient."""
    x = torch.randn(numbers, device=bench.device, requires_grad=True)
    g = torch.ones(numbers, device=bench.device)
    with torch.no_grad():
        forward = bench.seconds(lambda: function(x))

    def both() -> None:
        function(x).backward(g)
        x.grad = None

    return {"forward": numbers / forward, "back": numbers / max(bench.seconds(both) - forward, 1e-9)}


def peak(bench: Bench, dtype: torch.dtype, *, width: int = 2048) -> float:
    """FLOP/s of one large square product."""
    a, b = (torch.ones(width, width, dtype=dtype, device=bench.device) for _ in range(2))
    return 2 * width**3 / bench.seconds(lambda: a @ b)


def linear_rates(
    bench: Bench,
    dtype: torch.dtype,
    prepare: Callable[[Tensor], Prepared],
    *,
    width: int,
    nbytes: int = 1 << 27,
    rows: Sequence[int] = ROWS,
) -> dict[int, float]:
    """FLOP/s of y = x · Wᵀ in inference, W (2 · width, width), by rows of x.

    `nbytes` of weights take turns: no cache holds them.
    """
    n = max(2, nbytes // (2 * width * width * dtype.itemsize))
    maps = [prepare(torch.randn(2 * width, width, device=bench.device).to(dtype)) for _ in range(n)]
    found = {}
    for count in rows:
        x = torch.randn(count, width, device=bench.device).to(dtype)

        def call(x: Tensor = x) -> None:
            for each in maps:
                each(x)

        with torch.inference_mode():
            found[count] = n * 2.0 * count * 2 * width * width / bench.seconds(call)
    return found


def trained_rates(
    bench: Bench, step: Callable[[Tensor, Tensor], Tensor], *, width: int, rows: Sequence[int] = TRAINED_ROWS
) -> dict[int, float]:
    """FLOP/s of the three products of a linear map, forward and backward, by rows; `step(x, w)` gives x · wᵀ."""
    w = torch.randn(2 * width, width, device=bench.device, requires_grad=True)
    found = {}
    for count in rows:
        x = torch.randn(count, width, device=bench.device, requires_grad=True)
        g = torch.randn(count, 2 * width, device=bench.device)

        def call(x: Tensor = x, g: Tensor = g) -> None:
            y = step(x, w)
            y.backward(g.to(y.dtype))
            x.grad = w.grad = None

        found[count] = 6.0 * count * 2 * width * width / bench.seconds(call)
    return found


def attention_rates(
    bench: Bench,
    dtype: torch.dtype,
    attend: Callable[..., Tensor],
    *,
    length: int,
    d_head: int,
    heads: int = 8,
) -> tuple[float, float]:
    """FLOP/s of causal attention, over the pairs that are seen: of the forward pass, and of its gradient."""
    shape = (1, length, heads, d_head)
    q, k, v = (torch.randn(shape, device=bench.device).to(dtype).requires_grad_() for _ in range(3))
    seen = 4.0 * heads * d_head * length * (length + 1) / 2
    with torch.no_grad():
        forward = bench.seconds(lambda: attend(q, k, v, causal=True))
    g = torch.randn(shape, device=bench.device).to(dtype)

    def both() -> None:
        attend(q, k, v, causal=True).backward(g)
        q.grad = k.grad = v.grad = None

    backward = max(bench.seconds(both) - forward, 1e-9)
    return seen / forward, 2 * seen / backward


def moving_seconds(
    bench: Bench, step_of: Callable[[Sequence[Tensor]], Callable[[], Any]], *, short: int, most: int = 16
) -> dict[int, float]:
    """Seconds that an optimizer takes for a matrix (short, long), by long; `step_of(matrices)` moves several at once.

    Up to `most` of them, as many as come to a million numbers, and one at least.
    """
    found = {}
    for long in (short, 3 * short):
        n = max(1, min(most, (1 << 20) // (short * long)))
        matrices = [torch.randn(short, long, device=bench.device).requires_grad_() for _ in range(n)]
        for each in matrices:
            each.grad = torch.randn_like(each)
        found[long] = bench.seconds(step_of(matrices)) / n
    return found
