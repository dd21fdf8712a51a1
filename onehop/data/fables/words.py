"""The words of the fables, as data. In a list no word begins another, so that each can be read back."""

GIRLS = (
    "Mia", "Nora", "Ella", "Ruby", "Clara", "Hazel", "Ivy", "Luna", "Rosa", "Tess",
    "Willa", "Bella", "Dora", "Flora", "Greta", "Kate", "Lucy", "Molly", "Pearl", "Zoe",
)  # fmt: skip
BOYS = (
    "Tom", "Max", "Leo", "Oscar", "Felix", "Hugo", "Jack", "Ben", "Sam", "Theo",
    "Otto", "Milo", "Finn", "Gus", "Henry", "Ivan", "Karl", "Ned", "Paul", "Walter",
)  # fmt: skip
TRAITS = (
    "shy", "brave", "clever", "kind", "lazy", "proud", "curious", "gentle", "merry", "patient",
    "careful", "cheerful", "polite", "stubborn", "quiet", "greedy", "eager", "silly", "humble", "dreamy",
)  # fmt: skip
ANIMALS = (
    "fox", "hare", "mouse", "bear", "hedgehog", "badger", "rabbit", "kitten",
    "lamb", "puppy", "frog", "otter", "squirrel", "pig", "mole", "cricket",
)  # fmt: skip
FRIENDS = (
    "owl", "crow", "goose", "swan", "turtle", "donkey", "beaver", "duck",
    "heron", "toad", "goat", "robin", "horse", "raven", "stork", "snail",
)  # fmt: skip
HOMES = (
    "forest", "village", "valley", "river", "lake", "mountain", "castle", "harbor",
    "meadow", "market", "desert", "island", "swamp", "lighthouse", "bakery", "vineyard",
)  # fmt: skip
WEATHERS = (
    "sunny", "rainy", "windy", "foggy", "snowy", "cloudy", "stormy", "frosty",
    "misty", "warm", "cold", "chilly", "bright", "gray", "dark", "breezy",
)  # fmt: skip
TIMES = (
    "morning", "afternoon", "evening", "day", "weekend", "Monday",
    "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
LOOKS = (
    "red", "blue", "green", "yellow", "purple", "silver", "golden", "striped", "spotted", "painted",
    "shiny", "dusty", "pretty", "plain", "fancy", "muddy", "strange", "magic", "crooked", "famous",
)  # fmt: skip
REMEDIES = (
    "better", "different", "perfect", "proper", "second", "spare",
    "nicer", "newer", "finer", "splendid", "lovely", "modern",
)  # fmt: skip
KEEPING = ("left", "kept", "put", "hid", "stored", "dropped")
THEFTS = ("hid", "dropped", "threw", "buried", "tossed", "lost")
GLOOMS = (
    "sad", "upset", "angry", "gloomy", "cross", "tired", "puzzled", "worried",
    "lonely", "grumpy", "ashamed", "nervous", "restless", "sorry", "helpless", "foolish",
)  # fmt: skip
JOYS = (
    "happy", "glad", "calm", "delighted", "grateful", "lucky", "peaceful", "pleased",
    "thankful", "hopeful", "joyful", "content", "safe", "wise", "rich", "cozy",
)  # fmt: skip
TOYS = (
    "kite", "ball", "flute", "whistle", "book", "map", "hat", "ring",
    "coin", "mask", "puzzle", "marble", "button", "feather", "shell", "bracelet",
)  # fmt: skip
TOOLS = (
    "lantern", "hammer", "key", "spoon", "umbrella", "compass", "candle", "brush",
    "bottle", "letter", "watch", "needle", "comb", "pen", "mug", "mirror",
)  # fmt: skip
SPOTS = (
    "in the barn", "in the attic", "in the cellar", "in the garden", "in the kitchen", "in the stable",
    "under the bridge", "under the oak", "under the stairs", "on the hill", "on the porch", "on the wall",
    "behind the mill", "behind the church", "behind the shed", "by the pond", "by the fountain", "by the well",
)  # fmt: skip
THIEVES = (
    "magpie", "monkey", "parrot", "wolf", "weasel", "pirate",
    "wizard", "giant", "thief", "gnome", "witch", "raccoon",
)  # fmt: skip
FLAVOURS = (
    "plum", "honey", "cherry", "lemon", "berry", "nut", "peach", "pear",
    "fig", "mint", "mushroom", "cabbage", "bean", "walnut", "garlic", "ginger",
)  # fmt: skip
DISHES = ("pie", "cake", "soup", "stew", "pudding", "bread", "salad", "jam", "tart", "porridge")
DEEDS = (
    "sing", "dance", "swim", "draw", "climb", "fish", "juggle", "knit", "whisper", "read",
    "skate", "dig", "hop", "paint", "cook", "explore", "sleep", "laugh", "dream", "sail",
)  # fmt: skip
VIRTUES = (
    "kindness", "patience", "courage", "honesty", "friendship", "laughter", "wisdom", "sharing",
    "trust", "hope", "mercy", "love", "practice", "teamwork", "listening", "gratitude",
)  # fmt: skip
RICHES = (
    "gold", "strength", "luck", "speed", "beauty", "anger", "fame", "pride",
    "magic", "jewels", "cunning", "power", "money", "haste", "noise", "force",
)  # fmt: skip
MORALS = (
    "a good friend is worth more than gold",
    "two heads are better than one",
    "asking for help is no shame",
    "patience opens many doors",
    "a kind word costs nothing",
    "there is always another way",
    "sharing makes everything sweeter",
    "it pays to measure first",
    "nothing is lost while friends are near",
    "every mistake is a teacher",
    "laughter makes work light",
    "great and humble need each other",
    "home is where your friends are",
    "slow and steady wins the race",
    "the best gifts are not things",
    "even a long road ends",
)
FUNCTION_WORDS = (
    "a", "after", "alas", "all", "along", "also", "always", "an", "and", "another", "are", "at", "be",
    "because", "behind", "but", "by", "could", "couldn't", "did", "didn't", "each", "even", "every",
    "everything", "for", "from", "had", "he", "her", "his", "how", "i", "in", "is", "just", "let", "like",
    "many", "more", "near", "next", "no", "nobody", "nothing", "now", "of", "oh", "on", "once", "one",
    "other", "so", "some", "soon", "than", "that", "the", "then", "there", "they", "this", "through", "to",
    "together", "too", "two", "under", "upon", "us", "was", "we", "were", "what", "when", "where", "while",
    "who", "with", "worth", "your",
)  # fmt: skip
