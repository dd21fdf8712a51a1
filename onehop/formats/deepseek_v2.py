"""DeepSeek-V2 and its Lite and Coder forms as Hugging Face folders: arXiv:2405.04434. No torch."""

from onehop.base.errors import CheckpointError
from onehop.config.model import ModelConfig
from onehop.formats import experts, kin, latent
from onehop.formats.experts import DENSE, ROUTED, ROUTER_OUTPUT, Balance, expert_rows, shared_rows
from onehop.formats.keys import REQUIRED, Json, Key, Keys, Only
from onehop.formats.layout import Family
from onehop.formats.mixed import Mixed

WORDS = ("greedy", "group_limited_greedy")


def _groups(raw: Json) -> Json:
    method = raw.get("topk_method") or "greedy"
    if method not in WORDS:
        raise CheckpointError(f"config.json: topk_method={method!r} is not known. Known: {', '.join(WORDS)}.")
    if method == "greedy":
        return {}
    if raw.get("n_group") is None or raw.get("topk_group") is None:
        raise CheckpointError(f"config.json: topk_method={method!r} needs n_group and topk_group. Get the whole file.")
    return experts.groups(raw, 1, 1)


def _says_groups(config: ModelConfig) -> Json:
    said = experts.says_groups(config)
    return {**said, "topk_method": WORDS[said["n_group"] > 1]}


KINDS, SAYS = experts.first_dense(0)
ROUTED_ROWS = (
    experts.always(ffn__kind="moe"),
    experts.shared_width(1407, 2),
    Key("n_routed_experts", "ffn.n_experts", default=64),
    Key("num_experts_per_tok", "ffn.n_active", default=REQUIRED),
    Keys("topk_method n_group topk_group", _groups, _says_groups),
    Key("routed_scaling_factor", "ffn.routed_scale", default=1.0),
    experts.always(ffn__renormalise=False),
    experts.ACTIVATION,
    Balance(0.001, "aux_loss_alpha"),
)
DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    title="Hugging Face DeepSeek-V2",
    architecture="DeepseekV2ForCausalLM",
    aliases={"num_experts": "n_routed_experts"},
    structure=latent.STRUCTURE,
    keys=(
        *kin.SHAPE,
        *latent.HEADS,
        kin.rms_eps(),
        Mixed(
            "first_k_dense_replace",
            {DENSE: experts.dense_rows(11008), ROUTED: ROUTED_ROWS},
            KINDS,
            experts.kind_of,
            SAYS,
        ),
        kin.tie(default=False),
        latent.LatentRope(length=2048),
        ROUTER_OUTPUT,
        *latent.HARMLESS,
        Only("norm_topk_prob", (False,), "transformers ignores it and DeepSeek's own code does not"),
        Only("scoring_func", ("softmax",), "this layout's scores are a softmax"),
        Only("mlp_bias", (False,), "feed-forward layers beside biased ones without biases"),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.PRE_NORMS,
        *latent.ATTENTION,
        *kin.GATED,
        *expert_rows("model.layers.{i}.mlp"),
        *shared_rows("model.layers.{i}.mlp.shared_experts"),
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
    ),
)
