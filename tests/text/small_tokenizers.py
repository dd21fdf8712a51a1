"""Small tokenizers of every kind that checkpoints have, built by hand."""

import json

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from onehop.text.pieces import byte_of_character
from onehop.text.settings import TokenizerSettings
from onehop.text.tokenizer import Tokenizer

CHAT_SPECIALS = ("<|eos|>", "<|im_start|>", "<|im_end|>")  # ids 256, 257, 258 after the bytes

HARD_TEXTS = (
    "",
    " ",
    "  two spaces",
    "\r\n\t",
    "\x00",
    "e\u0301",
    "\U0001f468\u200d\U0001f469",
    "\ufffd",
    "a" * 10_000,
    "Größe, naïve, Ελληνικά, русский, עברית, العربية, हिन्दी, ไทย, 中文, 日本語, 한국어",
    "👩🏽‍🚀🏴󠁧󠁢󠁥󠁮󠁧󠁿 ½ ﬁ ﷽ \u202eright to left\u202c \u2028",
    "def f(x):\n    return x  # tab\there\n\n\n",
    "▁the▁SentencePiece▁space",
    "</s><s><unk><|eos|>",
)


def bytes_only(specials=CHAT_SPECIALS, **settings):
    """Byte-level: ids 0..255 are the bytes, then the control tokens; no merges."""
    vocab = dict(byte_of_character())
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    return Tokenizer(backend, TokenizerSettings(**settings))


def byte_fallback(*, strip=True, bos_template=True, **settings):
    """As Llama 2: a space is ▁, one stands before every text, and what has no token becomes byte tokens."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for token in ["▁", *"abcdefghijklmnopqrstuvwxyz", "th", "▁th", "▁the", "on", "▁on", "é"]:
        vocab[token] = len(vocab)
    merges = [("t", "h"), ("▁", "th"), ("▁th", "e"), ("o", "n"), ("▁", "on")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("▁")] if strip else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    undo = [decoders.Strip(" ", 1, 0)] if strip else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *undo])
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    if bos_template:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(backend, TokenizerSettings(**({"bos": "<s>", "eos": "</s>"} | settings)))


def unigram(**settings):
    """As T5: a Unigram model whose vocabulary holds the control tokens as strings, Metaspace, </s> after every text."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("▁the", -1.5)]
    pieces += [(letter, -3.0) for letter in "abcdefghijklmnopqrstuvwxyz</>"]
    backend = Backend(models.Unigram(pieces, 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    backend.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<unk>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return Tokenizer(backend, TokenizerSettings(**({"eos": "</s>"} | settings)))


def two_step_template(tokenizer):
    """The post-processor of Llama 3: byte-level trimming, then a template with the begin token. As a new Tokenizer."""
    spec = json.loads(tokenizer.backend.to_str())
    name, token_id = tokenizer.settings.bos, tokenizer.bos_id
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [token_id], "tokens": [name]}},
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    spec["post_processor"] = {"type": "Sequence", "processors": [byte_level, template]}
    return Tokenizer(Backend.from_str(json.dumps(spec)), tokenizer.settings)
