"""Text that the model writes while it learns."""

from onehop.generate import Engine, Limits, Request, run
from onehop.model.transformer import Transformer
from onehop.text.tokenizer import Tokenizer


def sample(model: Transformer, tokenizer: Tokenizer, prompt: str, *, n_tokens: int, seed: int = 0) -> str:
    """The prompt and up to `n_tokens` more, drawn at temperature 0.8 from `seed`; ends where the model ends it."""
    limits = Limits(
        n_ids=tokenizer.vocab_size,
        max_len=model.config.max_len,
        start_id=tokenizer.bos_id if tokenizer.bos_id is not None else 0,
        eos_ids=frozenset(tokenizer.eos_ids),
    )
    ids = tuple(tokenizer.encode(prompt))
    request = Request(ids, max_new_tokens=n_tokens, temperature=0.8, seed=seed)
    was_training = model.training
    model.eval()
    text = "".join(piece.text for piece in run(Engine(model), [request], limits=limits, tokenizer=tokenizer))
    model.train(was_training)
    return prompt + text
