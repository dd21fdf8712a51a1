"""The troubles of the fables: two things that do not go together, because "it" is too much of something.

Each trouble is a family of sentences like "The trophy didn't fit in the suitcase because it was too big", with the
words that take part. What "it" is hangs on the sentence and on the flaw: too big, and it is the trophy; too small, and
it is the suitcase. (After Winograd 1972; Levesque, Davis and Morgenstern, The Winograd Schema Challenge, KR 2012.)
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Trouble:
    """In the sentences {x} and {y} stand for the two things, {+x}, {+y} and {+flaw} for where they are chosen.

    `x_flaws` are faults of {x}, `y_flaws` faults of {y}: as many of the one as of the other, so neither is the better
    guess. The claims come after "the", half of them with {x} first, half with {y} first.
    """

    name: str
    wish: str
    claims: tuple[str, ...]
    x: tuple[str, ...]
    y: tuple[str, ...]
    x_flaws: tuple[str, ...]
    y_flaws: tuple[str, ...]


TROUBLES = (
    Trouble(
        name="fit",
        wish=" put {a +x_look} {+x} in {a +y_look} {+y}.",
        claims=(
            " {x} didn't fit in the {y} because it was too {+flaw}.",
            " {y} couldn't hold the {x} because it was too {+flaw}.",
        ),
        x=("trophy", "teapot", "drum", "globe", "lamp", "kettle", "helmet", "puppet", "clock", "crown"),
        y=("suitcase", "basket", "drawer", "chest", "bag", "bucket", "cupboard", "crate", "jar", "pocket"),
        x_flaws=("big", "large", "wide"),
        y_flaws=("small", "little", "narrow"),
    ),
    Trouble(
        name="carry",
        wish=" set {a +x_look} {+x} on {a +y_look} {+y}.",
        claims=(
            " {x} didn't stay on the {y} because it was too {+flaw}.",
            " {y} couldn't carry the {x} because it was too {+flaw}.",
        ),
        x=("anvil", "statue", "boulder", "stove", "bell", "cannon", "pumpkin", "melon", "rock", "log"),
        y=("shelf", "table", "bench", "stool", "ledge", "chair", "desk", "branch", "raft", "cart"),
        x_flaws=("heavy", "massive", "huge"),
        y_flaws=("weak", "frail", "shaky"),
    ),
    Trouble(
        name="reach",
        wish=" reach {a +y_look} {+y} with {a +x_look} {+x}.",
        claims=(
            " {x} didn't reach the {y} because it was too {+flaw}.",
            " {y} couldn't be touched with the {x} because it was too {+flaw}.",
        ),
        x=("ladder", "pole", "rope", "broom", "stick", "hook", "rake", "string", "chain", "spear"),
        y=("window", "nest", "roof", "balcony", "chimney", "flag", "tower", "coconut", "ceiling", "star"),
        x_flaws=("short", "stubby", "small"),
        y_flaws=("high", "far", "tall"),
    ),
    Trouble(
        name="cut",
        wish=" cut {a +y_look} {+y} with {a +x_look} {+x}.",
        claims=(
            " {x} didn't cut the {y} because it was too {+flaw}.",
            " {y} couldn't be sliced with the {x} because it was too {+flaw}.",
        ),
        x=("knife", "saw", "axe", "sword", "razor", "hatchet", "dagger", "chisel", "spade", "sickle"),
        y=("loaf", "cheese", "ham", "turnip", "carrot", "onion", "potato", "plank", "ribbon", "hedge"),
        x_flaws=("blunt", "dull", "rusty"),
        y_flaws=("hard", "tough", "firm"),
    ),
    Trouble(
        name="pass",
        wish=" push {a +x_look} {+x} through {a +y_look} {+y}.",
        claims=(
            " {x} didn't go through the {y} because it was too {+flaw}.",
            " {y} couldn't let the {x} pass because it was too {+flaw}.",
        ),
        x=("wardrobe", "mattress", "snowball", "bathtub", "bookcase", "armchair", "canoe", "harp", "cow", "tuba"),
        y=("door", "gate", "tunnel", "hall", "arch", "fence", "alley", "passage", "hatch", "porthole"),
        x_flaws=("wide", "tall", "bulky"),
        y_flaws=("narrow", "low", "tight"),
    ),
)
