"""A training loop of your own: look at every step, and change the model between steps.

Prints the gradient's size layer by layer, and freezes the first layer after ten steps.
"""

import sys

import onehop
from onehop.model import Transformer


def watch_gradients(model: Transformer) -> dict[str, float]:
    """Note the size of each layer's gradient whenever one has been computed."""
    squares: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        layer = ".".join(name.split(".")[:2])

        def add(gradient, layer=layer):
            squares[layer] = squares.get(layer, 0.0) + float(gradient.square().sum())

        parameter.register_hook(add)
    return squares


def main(out: str = "out/own-loop") -> None:
    """Train with one's own eyes on every step."""
    squares: dict[str, float] | None = None
    for step in onehop.steps("tiny", {"train.steps": 20, "out": out}, fresh=True):
        if squares is None:  # the model lives from the first step on
            squares = watch_gradients(step.model)
        if step.step == 10:
            step.model.layers[0].requires_grad_(False)
        if step.step % 5 == 0:
            sizes = "  ".join(f"{layer} {value**0.5:.2f}" for layer, value in sorted(squares.items()))
            print(f"step {step.step}  loss {step.loss:.3f}  gradients: {sizes}")
        squares.clear()
    print(f"validation loss {step.trainer.evaluate():.3f}")
    step.trainer.save()  # now `onehop generate` and --resume find it


if __name__ == "__main__":
    main(*sys.argv[1:])
