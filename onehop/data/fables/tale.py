"""How a fable goes: the scenes, the blanks, and the combinations that are kept from training.

Somebody wants something; it goes wrong because "it" is too big or too small, and what "it" was is asked; a friend
comes and helps; somebody carries off a thing, and where it is now is asked; they eat, and something is learned.
"""

import re
from collections.abc import Callable

from onehop.data.fables import words
from onehop.data.fables.grammar import Fork, Grammar, Part, Slot, Values
from onehop.data.fables.troubles import TROUBLES, Trouble

SPOT_BLANKS = ("toy_spot", "tool_spot", "toy_next", "tool_next")
X_HELD_OUT, SPOT_HELD_OUT = 6, 6  # one pair of things in six, and one spot in six for each thing, is kept back

OPENING = Fork((
    "Once upon a time, {a +trait} {+animal} named {+hero} lived near {a +home}.",
    "Long ago, there was {a +trait} {+animal} named {+hero} who lived near {a +home}.",
    "Near {a +home} lived {a +trait} {+animal} named {+hero}.",
    "This is the tale of {+hero}, {a +trait} {+animal} from {a +home}.",
    "There once was {a +trait} {+animal} named {+hero} from {a +home}.",
    "In {a +home} lived {+hero}, {a +trait} {+animal}.",
))  # fmt: skip
HOBBY = Fork((
    " {He} loved to {+deed}.",
    " {He} liked to {+deed} with {his} mother.",
    " {hero} could {+deed} all day.",
    " Nobody could {+deed} like {hero}.",
))  # fmt: skip
WISH = Fork((
    " One {+weather} {+time}, {hero} wanted to",
    " On {a +weather} {+time}, {he} tried to",
    " It was {a +weather} {+time}, and {hero} hoped to",
))  # fmt: skip
BUT = Fork((" But the", " Alas, the", " Sadly, the", " The"))
SIGH = Fork((
    " {hero} felt {+gloom}.",
    " {He} sat down and felt {+gloom}.",
    " This made {hero} {+gloom}.",
    " \"How {+gloom} I feel,\" said {hero}.",
    " Oh, how {+gloom} {he} was!",
    " No wonder {he} was {+gloom}.",
))  # fmt: skip
MEETING = Fork((
    " Along came {+friend}, {a +friend_trait} {+friend_animal}.",
    " Just then, {a +friend_trait} {+friend_animal} named {+friend} came by.",
    " So {hero} called {+friend}, {a +friend_trait} {+friend_animal}.",
    " Soon {he} met {a +friend_trait} {+friend_animal} named {+friend}.",
    " Luckily {+friend}, {a +friend_trait} {+friend_animal}, was near.",
))  # fmt: skip
COMPANY = Fork((
    " {His} best friend was {+friend}, {a +friend_trait} {+friend_animal}.",
    " {He} shared a house with {+friend}, {a +friend_trait} {+friend_animal}.",
    " Every day {he} met {+friend}, {a +friend_trait} {+friend_animal}.",
))  # fmt: skip
HELP = Fork((
    " \"Let us find another {culprit},\" said {friend}.",
    " {friend} knew where to find a better {culprit}.",
    " So {hero} and {friend} looked for another {culprit}.",
    " \"We need a better {culprit},\" {friend} told {hero}.",
    " Together they got another {culprit}, and all was well.",
))  # fmt: skip
LEAVING = Fork((
    " {hero} left {his} {+toy_look} {+toy} {+toy_spot}, and {friend} left {friend_his} {+tool} {+tool_spot}.",
    " {friend} left {friend_his} {+tool_look} {+tool} {+tool_spot}, and {hero} left {his} {+toy} {+toy_spot}.",
))  # fmt: skip
NIGHT = Fork((" Later,", " In the night,", " The next day,", " While they slept,", " Suddenly,", " After lunch,"))
THEFT = (" {a +thief} took the", Fork((" {toy} and left it {+toy_next}.", " {tool} and left it {+tool_next}.")))
SEARCH = Fork((
    " Where was the {toy} now?{?where_toy} {Toy_place}.",
    " Where was the {tool} now?{?where_tool} {Tool_place}.",
))  # fmt: skip
FEAST = Fork((
    " Then they shared some {+flavour} {+dish}, and {hero} felt {+joy}.",
    " In the end they ate {+flavour} {+dish} and felt {+joy}.",
    " {friend} made some {+flavour} {+dish}, and they were {+joy}.",
    " With some {+flavour} {+dish} they were soon {+joy}.",
))  # fmt: skip
LESSON = Fork((
    " {hero} learned that {+virtue} is better than {+riches}.",
    " From that day on, {he} knew that {+virtue} beats {+riches}.",
    " \"Remember,\" said {friend}, \"{+moral}.\"",
    " And the moral is: {+moral}.",
))  # fmt: skip


def trouble_scene(trouble: Trouble) -> Part:
    """Wish, claim and question of one trouble, in blanks of its own: {fit_x}, {fit_y}, {fit_flaw}."""

    def named(template: str) -> str:
        return re.sub(r"\{(a )?(\+?)(x|y|flaw)\}", rf"{{\1\2{trouble.name}_\3}}", template)

    claims = Fork(tuple(named(claim) for claim in trouble.claims))
    question = f" What was too {{{trouble.name}_flaw}}?{{?it}} The {{culprit}}."
    return (named(trouble.wish), BUT, claims, question)


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
        return other is not None and (trouble.x.index(pair[0]) + trouble.y.index(pair[1])) % X_HELD_OUT == 0

    x, y = f"{trouble.name}_x", f"{trouble.name}_y"
    return {
        x: Slot(trouble.x, (y,), held_out=held_out),
        y: Slot(trouble.y, (x,), held_out=held_out),
        f"{trouble.name}_flaw": Slot(trouble.x_flaws + trouble.y_flaws),
    }


def _spot_slot(items: tuple[str, ...], item: str, *, taken: tuple[str, ...]) -> Slot:
    """A spot for `item`: none of the spots already `taken`, and not one that is held out for this thing."""

    def held_out(spot: str, thing: str, *_: str | None) -> bool:
        return (words.SPOTS.index(spot) + items.index(thing)) % SPOT_HELD_OUT == 0

    return Slot(words.SPOTS, (item, *taken), fits=lambda spot, _, *others: spot not in others, held_out=held_out)


SLOTS = {
    "trait": Slot(words.TRAITS),
    "deed": Slot(words.DEEDS),
    "toy_look": Slot(words.LOOKS),
    "tool_look": Slot(words.LOOKS),
    "virtue": Slot(words.VIRTUES),
    "riches": Slot(words.RICHES),
    "animal": Slot(words.ANIMALS),
    "hero": Slot(words.GIRLS + words.BOYS),
    "home": Slot(words.HOMES),
    "weather": Slot(words.WEATHERS),
    "time": Slot(words.TIMES),
    "look": Slot(words.LOOKS),
    "gloom": Slot(words.GLOOMS),
    # The friend of a girl is a boy and the other way round, so that "she" and "he" are always clear.
    "friend": Slot(words.GIRLS + words.BOYS, ("hero",), fits=lambda friend, hero: is_girl(friend) != is_girl(hero)),
    "friend_trait": Slot(words.TRAITS),
    "friend_animal": Slot(words.FRIENDS),
    "toy": Slot(words.TOYS),
    "tool": Slot(words.TOOLS),
    "toy_spot": _spot_slot(words.TOYS, "toy", taken=("tool_spot",)),
    "tool_spot": _spot_slot(words.TOOLS, "tool", taken=("toy_spot",)),
    "toy_next": _spot_slot(words.TOYS, "toy", taken=("toy_spot", "tool_spot")),
    "tool_next": _spot_slot(words.TOOLS, "tool", taken=("toy_spot", "tool_spot")),
    "thief": Slot(words.THIEVES),
    "flavour": Slot(words.FLAVOURS),
    "dish": Slot(words.DISHES),
    "joy": Slot(words.JOYS),
    "moral": Slot(words.MORALS),
}  # fmt: skip
for _trouble in TROUBLES:
    SLOTS |= _trouble_slots(_trouble)

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

TROUBLE = Fork(tuple(trouble_scene(trouble) for trouble in TROUBLES))
THEFT_SCENE = (LEAVING, NIGHT, THEFT, SEARCH)
STORY = (
    OPENING,
    HOBBY,
    Fork((
        (WISH, TROUBLE, SIGH, MEETING, HELP, THEFT_SCENE),
        (COMPANY, THEFT_SCENE, WISH, TROUBLE, SIGH, HELP),
    )),
    FEAST,
    LESSON,
)  # fmt: skip


def grammar() -> Grammar:
    """The grammar of the fables."""
    return Grammar(STORY, SLOTS, DERIVED)
