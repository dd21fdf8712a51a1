"""The blanks of a fable: the words that each may take, and the combinations that are kept from training."""

from collections.abc import Callable

from onehop.data.fables import words
from onehop.data.fables.grammar import Grammar, Slot, Values
from onehop.data.fables.scenes import STORY
from onehop.data.fables.troubles import TROUBLES, Trouble

SPOT_BLANKS = ("toy_spot", "tool_spot", "toy_next", "tool_next")
PAIRS_HELD_OUT = 5  # of the pairs of things that do not go together, one in so many is kept from training
SPOTS_HELD_OUT = 4  # of the spots for each thing, one in so many; the three that are left for questions must differ


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


def _trouble_slots(trouble: Trouble) -> dict[str, Slot]:
    """The second of the two things to be chosen is the one that must not make a held-out pair."""

    def held_out(word: str, other: str | None) -> bool:
        pair = (word, other) if word in trouble.x else (other, word)
        return other is not None and (trouble.x.index(pair[0]) + trouble.y.index(pair[1])) % PAIRS_HELD_OUT == 0

    x, y = f"{trouble.name}_x", f"{trouble.name}_y"
    return {
        x: Slot(trouble.x, (y,), held_out=held_out),
        y: Slot(trouble.y, (x,), held_out=held_out),
        f"{trouble.name}_flaw": Slot(trouble.x_flaws + trouble.y_flaws),
    }


def _spot_slot(items: tuple[str, ...], item: str, *, taken: tuple[str, ...]) -> Slot:
    """A spot for `item`: none of the spots already `taken`, and not one that is held out for this thing."""

    def held_out(spot: str, thing: str, *_: str | None) -> bool:
        return (words.SPOTS.index(spot) + items.index(thing)) % SPOTS_HELD_OUT == 0

    return Slot(words.SPOTS, (item, *taken), fits=lambda spot, _, *others: spot not in others, held_out=held_out)


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
    "toy_kept": Slot(words.KEEPING),
    "toy_look": Slot(words.LOOKS),
    "toy": Slot(words.TOYS),
    "toy_spot": _spot_slot(words.TOYS, "toy", taken=("tool_spot",)),
    "tool_kept": Slot(words.KEEPING),
    "tool_look": Slot(words.LOOKS),
    "tool": Slot(words.TOOLS),
    "tool_spot": _spot_slot(words.TOOLS, "tool", taken=("toy_spot",)),
    "thief": Slot(words.THIEVES),
    "theft": Slot(words.THEFTS),
    "toy_next": _spot_slot(words.TOYS, "toy", taken=("toy_spot", "tool_spot")),
    "tool_next": _spot_slot(words.TOOLS, "tool", taken=("toy_spot", "tool_spot")),
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
