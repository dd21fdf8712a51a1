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
        x=(
            "trophy",
            "teapot",
            "drum",
            "globe",
            "lamp",
            "kettle",
            "helmet",
            "puppet",
            "clock",
            "crown",
            "trumpet",
            "vase",
        ),
        y=(
            "suitcase",
            "basket",
            "drawer",
            "chest",
            "bag",
            "bucket",
            "cupboard",
            "crate",
            "jar",
            "pocket",
            "sack",
            "box",
        ),
        x_flaws=("big", "large", "wide", "bulky"),
        y_flaws=("small", "little", "narrow", "tiny"),
    ),
    Trouble(
        name="carry",
        wish=" set {a +x_look} {+x} on {a +y_look} {+y}.",
        claims=(
            " {x} didn't stay on the {y} because it was too {+flaw}.",
            " {y} couldn't carry the {x} because it was too {+flaw}.",
        ),
        x=("anvil", "statue", "boulder", "stove", "bell", "cannon", "pumpkin", "melon", "rock", "log", "tub", "wheel"),
        y=("shelf", "table", "bench", "stool", "ledge", "chair", "desk", "branch", "raft", "cart", "sled", "tray"),
        x_flaws=("heavy", "massive", "huge", "solid"),
        y_flaws=("weak", "frail", "shaky", "brittle"),
    ),
    Trouble(
        name="reach",
        wish=" reach {a +y_look} {+y} with {a +x_look} {+x}.",
        claims=(
            " {x} didn't reach the {y} because it was too {+flaw}.",
            " {y} couldn't be touched with the {x} because it was too {+flaw}.",
        ),
        x=("ladder", "pole", "rope", "broom", "stick", "hook", "rake", "string", "chain", "spear", "paddle", "cane"),
        y=(
            "window",
            "nest",
            "roof",
            "balcony",
            "chimney",
            "flag",
            "tower",
            "coconut",
            "ceiling",
            "star",
            "swing",
            "sign",
        ),
        x_flaws=("short", "stubby", "small", "little"),
        y_flaws=("high", "far", "tall", "distant"),
    ),
    Trouble(
        name="cover",
        wish=" cover {a +y_look} {+y} with {a +x_look} {+x}.",
        claims=(
            " {x} didn't cover the {y} because it was too {+flaw}.",
            " {y} couldn't be hidden under the {x} because it was too {+flaw}.",
        ),
        x=("blanket", "quilt", "cloth", "curtain", "carpet", "shawl", "scarf", "towel", "rug", "cloak", "sail", "leaf"),
        y=("bed", "sofa", "boat", "wagon", "hole", "puddle", "haystack", "throne", "cradle", "stage", "tent", "piano"),
        x_flaws=("small", "short", "narrow", "tiny"),
        y_flaws=("big", "large", "wide", "long"),
    ),
    Trouble(
        name="cut",
        wish=" cut {a +y_look} {+y} with {a +x_look} {+x}.",
        claims=(
            " {x} didn't cut the {y} because it was too {+flaw}.",
            " {y} couldn't be sliced with the {x} because it was too {+flaw}.",
        ),
        x=("knife", "saw", "axe", "sword", "razor", "hatchet", "dagger", "chisel", "spade", "sickle", "scythe", "file"),
        y=("loaf", "cheese", "ham", "turnip", "carrot", "onion", "potato", "plank", "ribbon", "hedge", "vine", "wire"),
        x_flaws=("blunt", "dull", "rusty", "soft"),
        y_flaws=("hard", "tough", "firm", "thick"),
    ),
    Trouble(
        name="pass",
        wish=" push {a +x_look} {+x} through {a +y_look} {+y}.",
        claims=(
            " {x} didn't go through the {y} because it was too {+flaw}.",
            " {y} couldn't let the {x} pass because it was too {+flaw}.",
        ),
        x=(
            "wardrobe",
            "mattress",
            "snowball",
            "bathtub",
            "bookcase",
            "armchair",
            "canoe",
            "harp",
            "cow",
            "tuba",
            "couch",
            "ox",
        ),
        y=("door", "gate", "tunnel", "hall", "arch", "fence", "alley", "passage", "hatch", "porthole", "gap", "cave"),
        x_flaws=("wide", "tall", "bulky", "broad"),
        y_flaws=("narrow", "low", "tight", "cramped"),
    ),
)
