"""The scenes of a fable and their order: every sentence that can be told, as templates (see `grammar`).

Somebody wants something; it goes wrong because "it" is too big or too small, and what "it" was is asked; "it" is
swapped; somebody carries off a thing, and where it is now is asked; they eat, and something is learned.
"""

import re

from onehop.data.fables.grammar import Fork, Part
from onehop.data.fables.troubles import TROUBLES, Trouble

OPENING = Fork((
    "Once upon a time, {a +trait} {+animal} named {+hero} lived near {a +home_look} {+home}.",
    "Long ago, there was {a +trait} {+animal} named {+hero} who lived near {a +home_look} {+home}.",
    "This is the tale of {+hero}, {a +trait} {+animal} from {a +home_look} {+home}.",
    "There once was {a +trait} {+animal} named {+hero} from {a +home_look} {+home}.",
))  # fmt: skip
WISH = Fork((
    " One {+weather} {+time}, {hero} wanted to",
    " On {a +weather} {+time}, {he} tried to",
    " It was {a +weather} {+time}, and {hero} hoped to",
))  # fmt: skip
BUT = Fork((" But the", " Alas, the", " Sadly, the"))
MEETING = Fork((
    " Along came {+friend}, {a +friend_trait} {+friend_animal}.",
    " So {hero} called {+friend}, {a +friend_trait} {+friend_animal}.",
    " Luckily {+friend}, {a +friend_trait} {+friend_animal}, was near.",
))  # fmt: skip
COMPANY = Fork((
    " {His} best friend was {+friend}, {a +friend_trait} {+friend_animal}.",
    " {He} shared a house with {+friend}, {a +friend_trait} {+friend_animal}.",
))  # fmt: skip
HELP = Fork((
    " They swapped it for {a +remedy} {culprit}.",
    " {friend} found {a +remedy} {culprit}.",
))  # fmt: skip
TOY_LEFT = "{hero} {+toy_kept} {his} {+toy_look} {+toy} {+toy_spot}"
TOOL_LEFT = "{friend} {+tool_kept} {friend_his} {+tool_look} {+tool} {+tool_spot}"
LEAVING = Fork((f" {TOY_LEFT}, and {TOOL_LEFT}.", f" {TOOL_LEFT}, and {TOY_LEFT}."))
NIGHT = Fork((" Later,", " In the night,", " The next day,", " Suddenly,"))
THEFT = (" {a +thief} {+theft} the", Fork((" {toy} {+toy_next}.", " {tool} {+tool_next}.")))
SEARCH = Fork((
    " Where was the {toy} now?{?where_toy} {Toy_place}.",
    " Where was the {tool} now?{?where_tool} {Tool_place}.",
))  # fmt: skip
FEAST = Fork((
    " They shared some {+flavour} {+dish} and felt {+joy}.",
    " With some {+flavour} {+dish} they were soon {+joy}.",
))  # fmt: skip
LESSON = Fork((
    " {hero} learned that {+virtue} beats {+riches}.",
    " The moral: {+virtue} is better than {+riches}.",
    " \"You see,\" said {friend}, \"{+virtue} beats {+riches}.\"",
))  # fmt: skip


def trouble_scene(trouble: Trouble) -> Part:
    """Wish, claim and question of one trouble, in blanks of its own: {fit_x}, {fit_y}, {fit_flaw}."""

    def named(template: str) -> str:
        return re.sub(r"\{(a )?(\+?)(x|y|flaw)\}", rf"{{\1\2{trouble.name}_\3}}", template)

    claims = Fork(tuple(named(claim) for claim in trouble.claims))
    question = f" What was too {{{trouble.name}_flaw}}?{{?it}} The {{culprit}}."
    return (named(trouble.wish), BUT, claims, question)


TROUBLE = Fork(tuple(trouble_scene(trouble) for trouble in TROUBLES))
THEFT_SCENE = (LEAVING, NIGHT, THEFT, SEARCH)
STORY = (
    OPENING,
    Fork((
        (WISH, TROUBLE, MEETING, HELP, THEFT_SCENE),
        (COMPANY, THEFT_SCENE, WISH, TROUBLE, HELP),
    )),
    FEAST,
    LESSON,
)  # fmt: skip
