"""The exact entropy of a grammar, in nats per text: the loss that no model can beat on average.

By the chain rule (Cover and Thomas, section 2.5) the entropy of a text is the mean, over what was chosen so far, of
the log of the number of options at each choice. The recursion below walks the choices once per *case*: of the past it
keeps only the values on which later choices depend, so two pasts that leave the same choices open share one result.
"""

import math

from onehop.data.fables.grammar import Cell, Grammar, Values


def exact_entropy(grammar: Grammar) -> float:
    """Nats per text of exactly the distribution that `grammar.write` samples, its end included."""
    return _Recursion().nats(grammar.start, {})


class _Recursion:
    def __init__(self) -> None:
        self.known: dict[tuple[Cell, tuple[tuple[str, str], ...]], float] = {}
        self.needs: dict[Cell | None, frozenset[str]] = {None: frozenset()}

    def nats(self, cell: Cell | None, values: Values) -> float:
        """Mean over all continuations from `cell` of the summed logs of the numbers of options."""
        nats = 0.0
        while cell is not None:
            joined = self.joined(cell)
            if joined is None:
                break
            nats, cell = nats + joined[0], joined[1]
        if cell is None:
            return nats
        case = (cell, tuple([(name, values[name]) for name in self.live(cell) if name in values]))
        if case not in self.known:
            self.known[case] = self._choice(cell, dict(case[1]))
        return nats + self.known[case]

    def joined(self, cell: Cell) -> tuple[float, Cell | None] | None:
        """Nats and following cell of a step that is the same in every case; None where the case matters."""
        if cell.kind == "fork":
            ends = {self._first_choice(way) for way in cell.ways}
            return (math.log(len(cell.ways)), ends.pop()) if len(ends) == 1 else None
        if cell.kind != "pick":
            return 0.0, cell.after
        if cell.slot.given or cell.text in self.live(cell.after):
            return None
        return math.log(len(cell.options({}))), cell.after

    def _first_choice(self, cell: Cell | None) -> Cell | None:
        while cell is not None and cell.kind not in ("pick", "fork"):
            cell = cell.after
        return cell

    def _choice(self, cell: Cell, values: Values) -> float:
        if cell.kind == "fork":
            return math.log(len(cell.ways)) + math.fsum(self.nats(way, values) for way in cell.ways) / len(cell.ways)
        options = cell.options(values)
        if cell.text not in self.live(cell.after):
            return math.log(len(options)) + self.nats(cell.after, values)
        rest = math.fsum(self.nats(cell.after, values | {cell.text: word}) for word in options)
        return math.log(len(options)) + rest / len(options)

    def live(self, cell: Cell | None) -> frozenset[str]:
        """The blanks whose values change the choices from `cell` on."""
        if cell not in self.needs:
            assert cell is not None
            if cell.kind == "fork":
                self.needs[cell] = frozenset().union(*(self.live(way) for way in cell.ways))
            else:
                rest = self.live(cell.after)
                self.needs[cell] = rest - {cell.text} | set(cell.slot.given) if cell.kind == "pick" else rest
        return self.needs[cell]
