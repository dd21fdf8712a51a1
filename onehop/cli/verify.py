"""onehop verify MODEL"""

from pathlib import Path
from typing import Annotated

import typer

from onehop.base.units import human_bytes
from onehop.cli import options as o
from onehop.cli.common import Json, beside, check_png, machines, new_app, people, place_of
from onehop.lm import load
from onehop.lm.positions import positions
from onehop.lm.positions_picture import draw
from onehop.lm.verify import Check, cost
from onehop.lm.verify import verify as run_checks

app = new_app()


@app.command()
def verify(
    model: o.Model,
    seed: Annotated[int, typer.Option(help="of the random tokens that are compared")] = 0,
    length: Annotated[int | None, typer.Option(help="tokens of the longest text (48, or past a window)")] = None,
    compile: Annotated[bool, typer.Option(help="torch.compile too; it takes up to a minute")] = True,
    out: Annotated[Path | None, typer.Option(help="draw the model's positions into this PNG file")] = None,
    dtype: o.DType = None,
    device: o.Device = "cpu",
    parts: o.Parts = None,
    json: Json = False,
) -> int:
    """Check here, on this checkpoint, that all is whole and every path equals the definition; exit code 1 if not."""
    check_png(out)
    console = people(json)
    lm = load(place_of(model), dtype=dtype, device=device, parts=parts or [], report=beside(json))
    expected, where = cost(lm, length=length, compile=compile), positions(lm)
    console.print(
        f"about {max(1, expected.seconds):.0f} s, and {human_bytes(expected.nbytes)} beside the model", markup=False
    )
    for line in where.words:
        console.print(f"      {line}", markup=False, soft_wrap=True)
    if out is not None:
        draw(where, out)
        console.print(f"      drawn into {out}", markup=False)
    console.print(HEAD, markup=False, soft_wrap=True)
    checks = run_checks(
        lm, seed=seed, length=length, compile=compile,
        report=lambda check: console.print(_line(check), markup=False, soft_wrap=True),
    )  # fmt: skip
    failed = [check for check in checks if check.passed is False]
    if json:
        found = {"expected": vars(expected), "positions": vars(where) | {"curves": [vars(c) for c in where.curves]}}
        machines({"passed": not failed, **found, "checks": [vars(check) for check in checks]})
    done = [check for check in checks if check.passed is not None]
    console.print(
        f"{len(done) - len(failed)} of {len(done)} checks hold; {len(checks) - len(done)} had nothing to compare"
    )
    return 1 if failed else 0


NAME, FIGURE = 46, 7
HEAD = f"     {'':{NAME}} {'off by':>{FIGURE}} {'allowed':>{FIGURE}}  eps of   nearest to it, or first over"


def _line(check: Check) -> str:
    """One check: whether it holds, the difference and what is allowed in eps of the dtype, where, and what to know."""
    mark = {None: "  –", True: " ok", False: " NO"}[check.passed]
    if not check.unit or check.worst is None or check.tolerance is None:
        told = "; ".join(text for text in (check.where, check.note) if text)
        return f"{mark}  {check.name}" + (f": {told}" if told else "")
    figures = f"{check.worst:{FIGURE}.1f} {check.tolerance:{FIGURE}.1f}  {check.unit.removeprefix('eps of '):8}"
    below = f"\n       {check.note}" if check.note else ""
    return f"{mark}  {check.name:{NAME}} {figures} {check.where}{below}"
