"""The words of the fables, as data. In a list no word begins another, so that each can be read back."""

GIRLS = (
    "Mia", "Nora", "Ella", "Ruby", "Clara", "Hazel", "Ivy", "Luna", "Rosa", "Tess", "Willa", "Dora", "Greta",
    "Lucy",
)  # fmt: skip
BOYS = ("Tom", "Max", "Leo", "Oscar", "Felix", "Hugo", "Jack", "Ben", "Sam", "Theo", "Otto", "Milo", "Finn", "Henry")
TRAITS = (
    "shy", "brave", "clever", "kind", "lazy", "proud", "curious", "gentle", "merry", "patient",
    "careful", "silly", "cheerful", "polite", "greedy", "humble",
)  # fmt: skip
ANIMALS = (
    "fox", "hare", "mouse", "bear", "hedgehog", "badger", "rabbit", "kitten", "frog", "otter", "squirrel",
    "mole",
)  # fmt: skip
FRIENDS = ("owl", "crow", "goose", "swan", "turtle", "donkey", "beaver", "duck", "toad", "goat", "robin", "snail")
HOMES = (
    "forest", "village", "valley", "river", "lake", "mountain", "castle", "harbor", "meadow", "island",
    "market", "bakery",
)  # fmt: skip
WEATHERS = ("sunny", "rainy", "windy", "foggy", "snowy", "cloudy", "stormy", "frosty", "misty", "warm", "cold", "dark")
TIMES = ("morning", "afternoon", "evening", "day", "Monday", "Friday", "Saturday", "Sunday")
LOOKS = (
    "red", "blue", "green", "yellow", "silver", "golden", "striped", "painted", "shiny", "dusty",
    "pretty", "old", "purple", "plain", "fancy", "strange",
)  # fmt: skip
REMEDIES = ("better", "different", "perfect", "proper", "spare", "new", "lovely", "second")
KEEPING = ("left", "kept", "put", "hid")
THEFTS = ("hid", "dropped", "threw", "buried")
JOYS = (
    "happy", "glad", "calm", "delighted", "grateful", "lucky", "peaceful", "pleased", "hopeful", "joyful",
    "safe", "wise",
)  # fmt: skip
TOYS = ("kite", "ball", "flute", "whistle", "book", "map", "hat", "ring", "coin", "mask")
TOOLS = ("lantern", "hammer", "key", "spoon", "umbrella", "compass", "candle", "brush", "bottle", "mirror")
SPOTS = (
    "in the barn", "in the attic", "in the cellar", "in the garden", "under the bridge", "under the oak",
    "on the hill", "on the porch", "behind the mill", "behind the shed", "by the pond", "by the well",
)  # fmt: skip
THIEVES = ("magpie", "monkey", "parrot", "wolf", "weasel", "pirate", "wizard", "giant", "gnome", "witch")
FLAVOURS = (
    "plum", "honey", "cherry", "lemon", "berry", "nut", "mint", "mushroom", "peach", "pear", "cabbage",
    "garlic",
)  # fmt: skip
DISHES = ("pie", "cake", "soup", "stew", "pudding", "bread", "salad", "jam")
VIRTUES = (
    "kindness", "patience", "courage", "honesty", "friendship", "laughter", "wisdom", "sharing", "trust",
    "hope", "love", "practice",
)  # fmt: skip
RICHES = ("gold", "strength", "luck", "speed", "beauty", "anger", "fame", "pride", "jewels", "money", "haste", "noise")
FUNCTION_WORDS = (
    "a", "after", "alas", "all", "along", "also", "always", "an", "and", "another", "are", "at", "be",
    "because", "behind", "but", "by", "could", "couldn't", "did", "didn't", "each", "even", "every",
    "everything", "for", "from", "had", "he", "her", "his", "how", "i", "in", "is", "just", "let", "like",
    "many", "more", "near", "next", "no", "nobody", "nothing", "now", "of", "oh", "on", "once", "one",
    "other", "so", "some", "soon", "than", "that", "the", "then", "there", "they", "this", "through", "to",
    "together", "too", "two", "under", "upon", "us", "was", "we", "were", "what", "when", "where", "while",
    "who", "with", "worth", "your",
)  # fmt: skip
