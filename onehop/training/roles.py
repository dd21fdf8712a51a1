"""What each parameter is for: weight decay, Muon and width transfer treat them by role."""

from torch import nn

from onehop.config.recipe import Role
from onehop.model.init import BIASES
from onehop.parts.absolute import LearnedPositions
from onehop.parts.norm import LayerNorm, NormOfHeads, RMSNorm

EXPERTS = ("w1", "w2", "w3")  # stacked matrices of `parts/moe.py`


def roles(model: nn.Module) -> dict[str, Role]:
    """The role of each parameter, by its name."""
    return {name: _role(model, name, parameter) for name, parameter in model.named_parameters()}


def _role(model: nn.Module, name: str, parameter: nn.Parameter) -> Role:
    """embeddings: rows that are looked up; a tied head is one of them. matrices: stacks of experts too."""
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    if isinstance(owner, (RMSNorm, LayerNorm, NormOfHeads)):
        return "norms"
    if leaf in BIASES or parameter.dim() < 2 or ".schemes." in f".{name}":  # stacked biases are (E, F)
        return "biases"
    if isinstance(owner, (nn.Embedding, LearnedPositions)):
        return "embeddings"
    return "head" if path == "head.projection" else "matrices"


def is_hidden(name: str, role: Role, parameter: nn.Parameter) -> bool:
    """Whether this is a matrix between hidden states, or a stack of experts: not of the embedding or of the head.

    What else has more than two dims, such as a convolution in a part of one's own, is no matrix.
    """
    matrix = parameter.dim() == 2 or (parameter.dim() == 3 and name.rpartition(".")[2] in EXPERTS)
    return role == "matrices" and ".layers." in f".{name}" and matrix and min(parameter.shape[-2:]) > 1
