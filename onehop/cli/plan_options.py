"""The options of `onehop plan`, each with its help."""

from typing import Annotated

import typer

Model = Annotated[
    str | None,
    typer.Argument(
        help="a preset or recipe (onehop list), a run, a Hugging Face folder or config.json, a .gguf file, a hub name; "
        "left out: this machine"
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Argument(help="key=value: model.attention.n_kv_heads=2, train.micro_batch=8, train.optimizer=muon"),
]
Context = Annotated[int | None, typer.Option(help="tokens of a text (left out: the model's longest)")]
Batch = Annotated[int | None, typer.Option(help="texts at once (left out: 1)")]
DType = Annotated[
    str | None, typer.Option(help="weights as served: bfloat16, float16, float32, float8, q8_0, q6_k, q5_k, q4_k, q4_0")
]
CacheDType = Annotated[str | None, typer.Option(help="the cache: as the weights, or int8, float8 …")]
DeviceName = Annotated[str | None, typer.Option(help="H200, RTX4090, M4Max … (left out: this machine)")]
Tokens = Annotated[float | None, typer.Option(help="tokens to train on, for the loss (1e12)")]
Budget = Annotated[str | None, typer.Option(help="the best model for 1e21flops, 500gpu-hours or 5000usd")]
Mfu = Annotated[
    float | None, typer.Option(help="share of the device's peak that training reaches, for hours and money (0.4)")
]
Price = Annotated[float | None, typer.Option(help="what an hour of the device costs, for a budget in money")]
Serve = Annotated[
    float | None, typer.Option(help="tokens that the trained model will answer: over-train a smaller one")
]
FitLaw = Annotated[list[str] | None, typer.Option(help="a run's metrics.jsonl; several: fit a scaling law to them")]
Sweep = Annotated[str | None, typer.Option(help="a table and a plot over values: model.attention.n_kv_heads=1,2,4,8")]
Out = Annotated[str | None, typer.Option(help="where a sweep's plot goes (sweep.png)")]
WhatIf = Annotated[bool, typer.Option("--what-if", help="what would change if one thing did, a line each")]
WhatFits = Annotated[bool, typer.Option("--what-fits", help="types of weights by contexts: how many texts fit")]
Measure = Annotated[bool, typer.Option("--measure", help="measure this machine (about a minute), for all later plans")]
