"""The exact entropy of a grammar, in nats per text: the loss that no model can beat on average.

By the chain rule (Cover and Thomas, Elements of Information Theory, section 2.5) the entropy of a text is the mean,
over all that may be chosen, of the summed logs of the numbers of options. The recursion walks every choice once per
*case*: of the past it keeps only the values on which later choices depend, so that pasts which leave the same choices
open share one result.
"""

import math

from onehop.data.fables.grammar import Cell, Grammar, Values


def exact_entropy(grammar: Grammar) -> float:
    """Nats per text of exactly the distribution that `grammar.write` samples, its end included."""
    return _Recursion().nats(grammar.start, {})


class _Recursion:
    """Nats still to come from a cell, given the values so far; each table is filled as it is asked for."""

    def __init__(self) -> None:
        self._cases: dict[tuple[Cell | str | None, ...], float] = {}
        self._live: dict[Cell | None, tuple[str, ...]] = {None: ()}
        self._sure: dict[Cell | None, tuple[float, Cell | None]] = {None: (0.0, None)}

    def nats(self, cell: Cell | None, values: Values) -> float:
        """The mean, over all continuations, of the summed logs of the numbers of options."""
        sure, choice = self.sure(cell)
        if choice is None:
            return sure
        live = self.live(choice)
        case = (choice, *[values.get(name) for name in live])
        if case not in self._cases:
            self._cases[case] = self._choice(choice, {name: values[name] for name in live if name in values})
        return sure + self._cases[case]

    def _choice(self, cell: Cell, values: Values) -> float:
        if cell.kind == "fork":
            rest = math.fsum([self.nats(way, values) for way in cell.ways])
            return math.log(len(cell.ways)) + rest / len(cell.ways)
        options = cell.options(values)
        if cell.text not in self.live(cell.after):
            return math.log(len(options)) + self.nats(cell.after, values)
        rest = math.fsum([self.nats(cell.after, values | {cell.text: word}) for word in options])
        return math.log(len(options)) + rest / len(options)

    def live(self, cell: Cell | None) -> tuple[str, ...]:
        """The blanks whose values decide what can be chosen from `cell` on."""
        if cell not in self._live:
            assert cell is not None
            names = {name for way in cell.ways for name in self.live(way)} | set(self.live(cell.after))
            if cell.kind == "pick":
                names = names - {cell.text} | set(cell.slot.given)
            self._live[cell] = tuple(sorted(names))
        return self._live[cell]

    def sure(self, cell: Cell | None) -> tuple[float, Cell | None]:
        """The nats of the steps from `cell` on that are the same in every case, and the first choice that is not."""
        if cell not in self._sure:
            assert cell is not None
            self._sure[cell] = self._sure_here(cell)
        return self._sure[cell]

    def _sure_here(self, cell: Cell) -> tuple[float, Cell | None]:
        if cell.kind == "fork":
            ways = {self.sure(way) for way in cell.ways}
            if len(ways) > 1:
                return 0.0, cell
            nats, after = ways.pop()
            return math.log(len(cell.ways)) + nats, after
        nats, after = self.sure(cell.after)
        if cell.kind != "pick":
            return nats, after
        if cell.slot.given or cell.text in self.live(cell.after):
            return 0.0, cell
        return math.log(len(cell.options({}))) + nats, after
