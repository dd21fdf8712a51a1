"""Checkpoint layouts as tables: the tensor names of a file, ours, and a reversible operation between the two. No torch.

Read forwards a table imports, read backwards it exports. Names are generated from the table and the config and compared
as sets with the names that a file holds, so that row order means nothing and every mismatch is reported at once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from onehop.base.errors import CheckpointError
from onehop.config.ffn import MoEConfig
from onehop.config.model import BlockConfig, ModelConfig, StackConfig
from onehop.config.position import RopeConfig


@dataclass(frozen=True)
class Site:
    """Where a row applies: to layer `layer` of a stack, or (layer None) once to the whole model."""

    config: ModelConfig
    stack: StackConfig
    layer: int | None = None

    @property
    def block(self) -> BlockConfig:
        """The block of this layer."""
        assert self.layer is not None, "a row without {i} has no block"
        names, blocks = self.stack.pattern, {block.name: block for block in self.stack.blocks}
        return blocks[names[self.layer % len(names)]]


@dataclass(frozen=True)
class Op:
    """What turns their tensors into ours, by name; `weights/ops.py` executes it, forwards and backwards.

    `sizes` gives the rows of each part, for operations that cut.
    """

    name: str
    sizes: Callable[[Site], tuple[int, ...]] = lambda site: ()


SAME = Op("same")
TRANSPOSE = Op("transpose")
ALTERNATING = Op("alternating")  # two of ours in the last dim of one of theirs, number by number in turn
ALTERNATING_COLUMNS = Op("alternating_columns")  # likewise, of matrices that are stored (d_in, d_out)
AS_ROW = Op("as_row")  # a vector that is stored (1, n)
STACK = Op("stack")  # many of theirs, one for each expert, are one of ours


def rows(sizes: Callable[[Site], tuple[int, ...]]) -> Op:
    """One of their tensors holds several of ours, one below the other, with so many rows each."""
    return Op("rows", sizes)


def columns(sizes: Callable[[Site], tuple[int, ...]]) -> Op:
    """One of their tensors, stored (d_in, d_out), holds several of ours side by side, with so many columns each."""
    return Op("columns", sizes)


def _grouped(site: Site) -> tuple[int, ...]:
    a = site.block.attention
    return (a.n_kv_heads, a.group, a.d_head)


GROUPED_QKV = Op("grouped_qkv", _grouped)  # group by group: the query heads, the key head, the value head


def turned(n_heads: Callable[[Site], int]) -> Op:
    """A projection onto heads whose rotary pairs are (2j, 2j + 1) in their file, and (j, j + width/2) here."""

    def sizes(site: Site) -> tuple[int, ...]:
        a = site.block.attention
        width = a.position.width if isinstance(a.position, RopeConfig) else 0
        return (n_heads(site), a.d_head, a.d_head if width is None else width)

    return Op("turned", sizes)


def turned_last(sizes: Callable[[Site], tuple[int, ...]]) -> Op:
    """As `turned`, of heads whose last dims turn; `sizes`: heads, their width, and how much of it turns."""
    return Op("turned_last", sizes)


def always(site: Site) -> bool:
    """For a row without a condition."""
    return True


@dataclass(frozen=True)
class Move:
    """One row: their name, our name (or names, where theirs is fused), and the operation between the tensors.

    {i} runs over the layers (of the encoder where our name begins with `encoder.`); a name without {i} occurs once. {e}
    runs over a layer's experts, {q} over its query heads and {k} over its key heads, each of which we keep in one
    tensor: such a row takes all of them. A file may lack what is `optional`: it is zero then.
    """

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    op: Op = SAME
    when: Callable[[Site], bool] = always
    optional: bool = False


@dataclass(frozen=True)
class Twin:
    """A tensor that a file may carry although it repeats another one: not needed, but refused where the two differ."""

    theirs: str
    of: str
    when: Callable[[Site], bool] = always


@dataclass(frozen=True)
class Drop:
    """A known leftover that no model needs. {i} stands for any number, {any} for any ending."""

    theirs: str
    reason: str

    def fits(self, name: str, config: ModelConfig) -> bool:
        """Whether `name` is such a leftover in a file of a model of `config`."""
        pattern = re.escape(self.theirs).replace(r"\{i\}", r"\d+").replace(r"\{any\}", ".+")
        return re.fullmatch(pattern, name) is not None


@dataclass(frozen=True)
class Beyond(Drop):
    """What stands in layers that the model does not have; {i} stands for their numbers."""

    def fits(self, name: str, config: ModelConfig) -> bool:
        start, end = (re.escape(part) for part in self.theirs.split("{i}"))
        layer = re.match(rf"{start}(\d+){end}", name)
        return layer is not None and int(layer.group(1)) >= config.n_layers


Row = Move | Twin | Drop


def respelled(row: Row, spell: Callable[[str], str]) -> Row:
    """The row with their names spelled otherwise."""
    if isinstance(row, Twin):
        return replace(row, theirs=spell(row.theirs), of=spell(row.of))
    if isinstance(row, Drop) or isinstance(row.theirs, str):
        return replace(row, theirs=spell(str(row.theirs)))
    return replace(row, theirs=tuple(spell(name) for name in row.theirs))


@dataclass(frozen=True)
class Claim:
    """A row with its names filled in: these tensors of theirs become those of ours."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    op: str = "same"
    sizes: tuple[int, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Matched:
    """What to do with each tensor of a file: the claims, pairs that must be equal, and leftovers with their reasons.

    `zeros` are those of ours that the file may lack, and does.
    """

    claims: tuple[Claim, ...]
    twins: tuple[tuple[str, str], ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    zeros: tuple[str, ...] = ()


def claims(table: Sequence[Row], config: ModelConfig) -> Iterator[Claim]:
    """Every row that holds for `config`, once for each layer."""
    for row in table:
        if isinstance(row, Move):
            theirs, ours = _several(row.theirs), _several(row.ours)
            for site in _sites(theirs[0], ours[0], config):
                if row.when(site):
                    names = tuple(name for template in theirs for name in _each(_named(template, site), site))
                    yield Claim(
                        names, tuple(_named(o, site) for o in ours), row.op.name, row.op.sizes(site), row.optional
                    )


def match(table: Sequence[Row], config: ModelConfig, found: Iterable[str], *, where: str) -> Matched:
    """Hold the table against the names in a file. Raises CheckpointError naming all that is missing or unexpected."""
    names = set(found)
    refuse_too_many_layers(config, len(names), where=where)
    every = tuple(claims(table, config))
    lacking = {claim for claim in every if claim.optional and names.isdisjoint(claim.theirs)}
    claimed = tuple(claim for claim in every if claim not in lacking)
    zeros = tuple(sorted(name for claim in lacking for name in claim.ours))
    needed = {name for claim in claimed for name in claim.theirs}
    whole = Site(config, config)
    twins = tuple((r.theirs, r.of) for r in table if isinstance(r, Twin) and r.theirs in names and r.when(whole))
    spare = names - needed - {name for name, _ in twins}
    drops = [row for row in table if isinstance(row, Drop)]
    dropped = {name: row.reason for name in sorted(spare) for row in drops if row.fits(name, config)}
    absent, unclaimed = needed - names, spare - dropped.keys()
    if absent or unclaimed:
        raise CheckpointError.names(absent=absent, unclaimed=unclaimed, where=where)
    return Matched(claimed, twins, tuple(dropped.items()), zeros)


def refuse_too_many_layers(config: ModelConfig, n_tensors: int, *, where: str) -> None:
    """Stop before a million names are generated for a config that cannot belong to so few tensors."""
    layers = config.n_layers + (config.encoder.n_layers if config.encoder is not None else 0)
    if layers > n_tensors:
        raise CheckpointError(
            f"{where}: the config says {layers} layers, but there are only {n_tensors} tensors. "
            "Check that the weights and the config belong to the same model."
        )


def _sites(theirs: str, ours: str, config: ModelConfig) -> Iterator[Site]:
    if "{i}" not in theirs:
        yield Site(config, config)
        return
    stack: StackConfig | None = config.encoder if ours.startswith("encoder.") else config
    if stack is not None:
        for i in range(stack.n_layers):
            yield Site(config, stack, i)


def _several(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _each(template: str, site: Site) -> Iterator[str]:
    """All of theirs that are one of ours."""
    for word, number in (("{e}", _experts), ("{q}", _query_heads), ("{k}", _key_heads)):
        if word in template:
            yield from (template.replace(word, str(j)) for j in range(number(site)))
            return
    yield template


def _experts(site: Site) -> int:
    ffn = site.block.ffn
    assert isinstance(ffn, MoEConfig), "a row with {e} holds for layers with experts"
    return ffn.n_experts


def _query_heads(site: Site) -> int:
    return site.block.attention.n_heads


def _key_heads(site: Site) -> int:
    return site.block.attention.n_kv_heads


def _named(template: str, site: Site) -> str:
    return template if site.layer is None else template.replace("{i}", str(site.layer))
