"""Options that several commands share: which model and how, and how to draw tokens."""

from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[
    str,
    typer.Argument(
        help="a onehop run, a Hugging Face folder, a .gguf file, a shipped model (onehop list models), a hub name; "
        ":Q8_0 behind a folder or a hub name takes that one of its GGUF files"
    ),
]
DType = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or float64 (left out: the checkpoint's)")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps")]
Compile = Annotated[
    bool, typer.Option("--compile", help="one compiled graph for each further token; pays for long answers")
]
KernelName = Annotated[str, typer.Option(help="attention kernel: auto, plain, tiled or fused")]
Parts = Annotated[list[Path] | None, typer.Option(help="a file with parts of your own that the model was made with")]
Adapter = Annotated[Path | None, typer.Option(help="a folder with a low-rank adapter (PEFT's format), to be added")]
Verbose = Annotated[bool, typer.Option("--verbose", help="show each setting and where it comes from")]

MaxNewTokens = Annotated[int | None, typer.Option(help="longest answer in tokens")]
Temperature = Annotated[float | None, typer.Option(help="0 takes the likeliest token; higher is more varied")]
TopK = Annotated[int | None, typer.Option(help="draw from the k likeliest tokens only; 0: off")]
TopP = Annotated[float | None, typer.Option(help="draw from the smallest set that reaches this probability; 1: off")]
MinP = Annotated[float | None, typer.Option(help="leave out tokens below this share of the likeliest; 0: off")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="divide scores of tokens that occurred; 1: off")]
PresencePenalty = Annotated[float | None, typer.Option(help="subtracted once from tokens already generated")]
FrequencyPenalty = Annotated[float | None, typer.Option(help="subtracted for each time a token was generated")]
Stop = Annotated[list[str] | None, typer.Option(help="end before this text; may be given several times")]
Seed = Annotated[int | None, typer.Option(help="repeats an answer")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="go on after an end token")]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given: None, empty lists and switches that are off are left to the checkpoint."""
    return {name: value for name, value in options.items() if value is not None and value is not False and value != []}
