"""onehop verify MODEL"""

from typing import Annotated

import typer

from onehop.cli import options as o
from onehop.cli.common import Json, beside, machines, new_app, people, place_of
from onehop.lm import load
from onehop.lm.verify import Check
from onehop.lm.verify import verify as run_checks

app = new_app()


@app.command()
def verify(
    model: o.Model,
    seed: Annotated[int, typer.Option(help="of the random tokens that are compared")] = 0,
    dtype: o.DType = None,
    device: o.Device = "cpu",
    parts: o.Parts = None,
    json: Json = False,
) -> int:
    """Check here, on this checkpoint, that every fast path equals the plain definition; exit code 1 if not."""
    console = people(json)
    lm = load(place_of(model), dtype=dtype, device=device, parts=parts or [], report=beside(json))
    checks = run_checks(lm, seed=seed, report=lambda check: console.print(_line(check), markup=False, soft_wrap=True))
    failed = [check for check in checks if check.passed is False]
    if json:
        machines({"passed": not failed, "checks": [vars(check) for check in checks]})
    done = [check for check in checks if check.passed is not None]
    console.print(
        f"{len(done) - len(failed)} of {len(done)} checks hold; {len(checks) - len(done)} had nothing to compare"
    )
    return 1 if failed else 0


def _line(check: Check) -> str:
    """One check: whether it holds, how far apart the sides were (a share of the largest logit), what is allowed."""
    if check.passed is None:
        return f"  –  {check.name}: {check.note}"
    mark = "ok " if check.passed else "NO "
    figures = "equal" if check.worst == 0 else f"off by {check.worst:.1e}"
    allowed = f", {check.tolerance:.0e} allowed" if check.tolerance else ""
    return f" {mark} {check.name}: {figures}{allowed}" + (f" ({check.note})" if check.note else "")
