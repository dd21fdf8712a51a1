"""What processes of onehop hold beside their tensors: libraries, an allocator's gaps, pages of a file that is read.

Only a process that does nothing else can tell, so real commands are run, each in one of its own:
`python -m onehop.cli.measure_resident train tiny …` is `onehop train tiny …` that says at its end how much it held.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from onehop.base.errors import OnehopError
from onehop.cli.main import main
from onehop.cli.plan_source import source
from onehop.cost.devices import Resident
from onehop.cost.planned import Asked, Plan
from onehop.machine.here import peak_resident

PACKAGE = Path(__file__).parents[1]
HOW = (
    "data.tokenizer=characters", "train.device=cpu", "train.precision=float32", "train.compile=no", "train.steps=2",
    "train.sample_tokens=0", "train.eval_rows=8",
)  # fmt: skip
# Two models and their rows: for the first the libraries count, for the second the tensors.
SIZES = (
    ("model.d_model=64", "model.max_len=128", "model.ffn.d_ff=192", "train.batch_size=4"),
    ("model.d_model=512", "model.n_layers=6", "model.max_len=256", "model.ffn.d_ff=1536", "train.batch_size=6"),
)
PROMPT, TOKENS = "The", 16
TINY = 1e-6  # a share that is none
Held = tuple[float, float, int]  # bytes of tensors and of others, as planned (see `Resident`), and of resident memory


def resident(report: Callable[[str], None]) -> dict[str, Resident]:
    """The memory around a training run's and an answer's tensors, by phase; nothing where the system does not tell."""
    if peak_resident() is None:
        return {}
    report("resident memory")
    try:
        small, large = (ran(*size) for size in SIZES)
    except OnehopError as error:
        report(str(error))
        return {}
    return {phase: line(small[phase], large[phase]) for phase in small}


def line(first: Held, last: Held) -> Resident:
    """Through what two processes held beside their tensors, which take no less than their own bytes."""
    beside = [held - live for live, _, held in (first, last)]
    share = max(TINY, (beside[1] - beside[0]) / (last[1] - first[1]))
    return Resident(base=max(1.0, beside[0] - share * first[1]), share=share)


def ran(*keys: str) -> dict[str, Held]:
    """A tiny recipe under `keys`, trained and asked, by phase."""
    with tempfile.TemporaryDirectory(prefix="onehop-") as folder:
        text = Path(folder) / "text.txt"  # any would do
        text.write_text("\n\n".join(file.read_text() for file in sorted(PACKAGE.glob("cost/*.py"))))
        trained = peak_of("train", "tiny", f"out={folder}/out", f"data.files={text}", *HOW, *keys)
        answered = peak_of("generate", f"{folder}/out", PROMPT, "--max-new-tokens", str(TOKENS), "--seed", "0")
        found = source(f"{folder}/out")
    one = Plan(found.config)
    asked = Asked(**{**found.trained, "context": len(PROMPT) + TOKENS, "dtype": "float32"})
    learning, serving = one.training_memory(asked, on_cpu=True), one.inference_memory(asked, on_cpu=True)
    return {
        "training": (learning.live, learning.live, trained),
        "inference": (serving.live, serving.prepared, answered),
    }


def peak_of(*words: str) -> int:
    """The most bytes of resident memory that `onehop WORDS` held. Raises OnehopError with what it said if it failed."""
    command = [sys.executable, "-m", __name__, *words]
    here = PACKAGE.parent  # where `-m` finds this onehop, and nobody's torch.py
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=here)
    told = done.stdout.splitlines()
    if done.returncode or not told or not told[-1].isdigit():
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise OnehopError(f"resident memory was not measured: onehop {words[0]} failed ({said})")
    return int(told[-1])


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.write(f"{peak_resident()}\n")
    sys.exit(code)
