"""Families with an encoder."""

from tests.parity.theirs import Case, V

T5 = {"vocab_size": V, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
      "decoder_start_token_id": 0}  # fmt: skip


def t5(**keys):
    return Case("t5", {**T5, **keys}, base=False, kind="seq2seq")


PAIR = {"vocab_size": V, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 44, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
        "max_position_embeddings": 64, "pad_token_id": 1, "decoder_start_token_id": 2}  # fmt: skip


def pair(name, **keys):
    return Case(name, {**PAIR, **keys}, base=False, kind="seq2seq")


BERT = {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 44,
        "max_position_embeddings": 64}  # fmt: skip


def bert(**keys):
    return Case("bert", {**BERT, **keys}, base=False, kind="masked")


CASES = {
    "t5, first form": t5(feed_forward_proj="relu"),
    "t5 1.1, gated": t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "t5, odd heads, few buckets, near": t5(
        d_kv=5,
        num_heads=3,
        relative_attention_num_buckets=6,
        relative_attention_max_distance=11,
    ),
    "t5, one depth for both": t5(num_decoder_layers=None, feed_forward_proj="gated-silu", tie_word_embeddings=False),
    "bart": pair("bart"),
    "bart, scaled, 3 odd heads": pair(
        "bart",
        scale_embedding=True,
        d_model=33,
        encoder_attention_heads=3,
        decoder_attention_heads=1,
        activation_function="relu",
    ),
    "bart, an embedding for each stack": pair("bart", tie_word_embeddings=False),
    "mbart, scaled": pair("mbart", scale_embedding=True, activation_function="gelu_new"),
    "marian": pair("marian", activation_function="swish", scale_embedding=True),
    "marian, unscaled, short": pair("marian", d_model=20, encoder_attention_heads=5, activation_function="relu"),
    "marian, an embedding for each stack": pair("marian", share_encoder_decoder_embeddings=False),
    "marian, a head of its own": pair("marian", share_encoder_decoder_embeddings=False, tie_word_embeddings=False),
    "marian, untied, as if shared": pair("marian", tie_word_embeddings=False, scale_embedding=True),
    "bert": bert(),
    "bert, untied, 3 odd heads": bert(hidden_size=33, num_attention_heads=3, tie_word_embeddings=False),
    "bert, 5 segments, others": bert(type_vocab_size=5, hidden_act="gelu_new", layer_norm_eps=0.1),
    "mt5": Case("mt5", {**T5, "feed_forward_proj": "gated-gelu"}, base=False, kind="seq2seq"),
}
