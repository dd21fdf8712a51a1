"""onehop list [recipes|presets|corpora|models|keys]"""

import tomllib
from typing import Annotated, Any

import typer

from onehop.base.errors import ConfigError, did_you_mean
from onehop.base.shipped import shipped, shipped_names
from onehop.cli.common import Json, machines, new_app, people
from onehop.config.keys import meanings
from onehop.config.named import presets
from onehop.config.recipe import Recipe
from onehop.data.corpora import CORPORA

app = new_app()
KINDS = ("recipes", "presets", "corpora", "models", "keys")
LONG = "keys"  # listed only when it is asked for


@app.command()
def listing(
    what: Annotated[
        str | None, typer.Argument(help="recipes, presets, corpora, models or keys; left out: all but keys")
    ] = None,
    json: Json = False,
) -> int:
    """List what ships with onehop."""
    if what is not None and what not in KINDS:
        raise ConfigError(f"there is no list of {what!r}. {did_you_mean(what, KINDS)}")
    found = {kind: _rows(kind) for kind in KINDS if what == kind or (what is None and kind != LONG)}
    if json:
        machines(found)
        return 0
    console = people(json)
    for kind, rows in found.items():
        console.print(f"[bold]{kind}[/bold]  ({USE[kind]})", markup=True)
        width = max((len(row["name"]) for row in rows), default=0)
        for row in rows:
            console.print(f"  {row['name']:<{width}}  {row['about']}", soft_wrap=True, markup=False)
    return 0


USE = {
    "recipes": "onehop train NAME",
    "presets": "model.preset = NAME in a recipe",
    "corpora": "data.corpus = NAME in a recipe",
    "models": "onehop generate NAME …",
    "keys": "in a recipe, or KEY=VALUE after it; model.blocks.NAME and model.encoder have those of model",
}


def _rows(kind: str) -> list[dict[str, Any]]:
    if kind == "recipes":
        return [{"name": name, "about": _about(name)} for name in shipped_names("runs")]
    if kind == "presets":
        return [{"name": name, "about": _shape(name)} for name in presets]
    if kind == "corpora":
        return [{"name": name, "about": corpus.description} for name, corpus in CORPORA.items()]
    if kind == "keys":
        return [{"name": key, "about": meaning} for key, meaning in meanings(Recipe).items()]
    return [{"name": name, "about": "a small trained model"} for name in shipped_names("models")]


def _about(name: str) -> str:
    path = shipped("runs", name)
    return str(tomllib.loads(path.read_text()).get("about", "")) if path else ""


def _shape(name: str) -> str:
    cfg = presets[name]
    heads = cfg.blocks[0].attention
    encoder = f" + {cfg.encoder.n_layers} encoder" if cfg.encoder else ""
    shape = f"{cfg.n_layers}{encoder} layers, {cfg.d_model} wide, {heads.n_heads} heads ({heads.n_kv_heads} kv)"
    return f"{shape}, context {cfg.max_len}"
