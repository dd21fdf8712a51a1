"""The blanks of a fable: the words that each may take, and the combinations that are kept from training."""

from collections.abc import Callable

from onehop.data.fables import words
from onehop.data.fables.grammar import Grammar, Slot, Values
from onehop.data.fables.scenes import STORY
from onehop.data.fables.troubles import TROUBLES, Trouble

SPOT_BLANKS = ("toy_spot", "tool_spot", "toy_next", "tool_next")
HELD_OUT = 5  # of the pairs of things in one fable, one in so many is kept from training


def culprit_and_other(values: Values) -> tuple[str, str]:
    """What "it" was, and what it might have been."""
    for trouble in TROUBLES:
        flaw = values.get(f"{trouble.name}_flaw")
        if flaw is not None:
            x, y = values[f"{trouble.name}_x"], values[f"{trouble.name}_y"]
            return (x, y) if flaw in trouble.x_flaws else (y, x)
    raise AssertionError("no trouble has happened yet")


def spots(values: Values, item: str) -> tuple[str, ...]:
    """Where `item`, "toy" or "tool", is now, and after it the other spots that were named."""
    now = values.get(f"{item}_next", values[f"{item}_spot"])
    named = (values[name] for name in SPOT_BLANKS if name in values)
    return (capital(now), *(capital(spot) for spot in named if spot != now))


def capital(text: str) -> str:
    """The text with its first letter raised."""
    return text[:1].upper() + text[1:]


def is_girl(name: str) -> bool:
    """Whether this is a girl's name."""
    return name in words.GIRLS


def _pair(one: tuple[str, ...], other: tuple[str, ...], *, blanks: tuple[str, str]) -> dict[str, Slot]:
    """Two blanks, filled in either order; the second choice is the one that must not make a held-out pair."""

    def held_out(word: str, earlier: str | None) -> bool:
        pair = (word, earlier) if word in one else (earlier, word)
        return earlier is not None and (one.index(pair[0]) + other.index(pair[1])) % HELD_OUT == 0

    first, second = blanks
    return {first: Slot(one, (second,), held_out=held_out), second: Slot(other, (first,), held_out=held_out)}


def _trouble_slots(trouble: Trouble) -> dict[str, Slot]:
    things = _pair(trouble.x, trouble.y, blanks=(f"{trouble.name}_x", f"{trouble.name}_y"))
    return {**things, f"{trouble.name}_flaw": Slot(trouble.x_flaws + trouble.y_flaws)}


def _spot_slot(*taken: str) -> Slot:
    """A spot that is none of those in the blanks `taken`."""
    return Slot(words.SPOTS, taken, fits=lambda spot, *others: spot not in others)


SLOTS = {
    "trait": Slot(words.TRAITS),
    "animal": Slot(words.ANIMALS),
    "hero": Slot(words.GIRLS + words.BOYS),
    "home_look": Slot(words.WEATHERS),
    "home": Slot(words.HOMES),
    "weather": Slot(words.WEATHERS),
    "time": Slot(words.TIMES),
    "x_look": Slot(words.LOOKS),
    "y_look": Slot(words.LOOKS),
    # The friend of a girl is a boy and the other way round, so that "she" and "he" are always clear.
    "friend": Slot(words.GIRLS + words.BOYS, ("hero",), fits=lambda friend, hero: is_girl(friend) != is_girl(hero)),
    "friend_trait": Slot(words.TRAITS),
    "friend_animal": Slot(words.FRIENDS),
    "remedy": Slot(words.REMEDIES),
    **_pair(words.TOYS, words.TOOLS, blanks=("toy", "tool")),
    "toy_kept": Slot(words.KEEPING),
    "toy_look": Slot(words.LOOKS),
    "toy_spot": _spot_slot("tool_spot"),
    "tool_kept": Slot(words.KEEPING),
    "tool_look": Slot(words.LOOKS),
    "tool_spot": _spot_slot("toy_spot"),
    "thief": Slot(words.THIEVES),
    "theft": Slot(words.THEFTS),
    "toy_next": _spot_slot("toy_spot", "tool_spot"),
    "tool_next": _spot_slot("toy_spot", "tool_spot"),
    "flavour": Slot(words.FLAVOURS),
    "dish": Slot(words.DISHES),
    "joy": Slot(words.JOYS),
    "virtue": Slot(words.VIRTUES),
    "riches": Slot(words.RICHES),
}

DERIVED: dict[str, Callable[[Values], str]] = {
    "he": lambda values: "she" if is_girl(values["hero"]) else "he",
    "He": lambda values: "She" if is_girl(values["hero"]) else "He",
    "his": lambda values: "her" if is_girl(values["hero"]) else "his",
    "His": lambda values: "Her" if is_girl(values["hero"]) else "His",
    "friend_his": lambda values: "her" if is_girl(values["friend"]) else "his",
    "culprit": lambda values: culprit_and_other(values)[0],
    "Toy_place": lambda values: spots(values, "toy")[0],
    "Tool_place": lambda values: spots(values, "tool")[0],
}


def grammar() -> Grammar:
    """The grammar of the fables."""
    troubles = [_trouble_slots(trouble) for trouble in TROUBLES]
    return Grammar(STORY, {name: slot for slots in (SLOTS, *troubles) for name, slot in slots.items()}, DERIVED)
