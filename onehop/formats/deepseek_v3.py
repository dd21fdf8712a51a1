"""DeepSeek-V3 and R1 as Hugging Face folders: arXiv:2412.19437. No torch."""

from onehop.formats import experts, kin, latent
from onehop.formats.experts import DENSE, ROUTED, ROUTER_OUTPUT, expert_rows, shared_rows
from onehop.formats.keys import Harmless, Json, Key, Keys, Only
from onehop.formats.layout import Family
from onehop.formats.mixed import Mixed
from onehop.formats.table import Beyond, Move


def _groups(raw: Json) -> Json:
    found = experts.groups(raw, 8, 4)
    return {**found, "ffn.group_score": "best two"} if found else {}


KINDS, SAYS = experts.first_dense(3)
ROUTED_ROWS = (
    experts.always(ffn__kind="moe", ffn__gate="sigmoid", ffn__balance="bias"),
    experts.shared_width(2048, 1),
    Key("n_routed_experts", "ffn.n_experts", default=256),
    Key("num_experts_per_tok", "ffn.n_active", default=8),
    Keys("n_group topk_group", _groups, experts.says_groups),
    Key("routed_scaling_factor", "ffn.routed_scale", default=2.5),
    Key("norm_topk_prob", "ffn.renormalise", default=True),
    experts.ACTIVATION,
)
DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    title="Hugging Face DeepSeek-V3",
    architecture="DeepseekV3ForCausalLM",
    aliases={"num_local_experts": "n_routed_experts"},
    structure=latent.STRUCTURE,
    keys=(
        *kin.SHAPE,
        *latent.HEADS,
        kin.rms_eps(),
        Mixed(
            "first_k_dense_replace",
            {DENSE: experts.dense_rows(18432), ROUTED: ROUTED_ROWS},
            KINDS,
            experts.kind_of,
            SAYS,
        ),
        kin.tie(default=False),
        latent.LatentRope(length=4096),
        ROUTER_OUTPUT,
        *latent.HARMLESS,
        Only("rope_interleave", (True,), "rotary pairs are neighbours in this layout"),
        Only("scoring_func", ("sigmoid",), "this layout's scores are sigmoids"),
        Only("topk_method", ("noaux_tc",), "this layout's experts are chosen with a bias, by group"),
        Harmless("num_nextn_predict_layers num_mtp_layers aux_loss_alpha", "layers that guess further, and a loss"),
    ),
    tensors=(
        *kin.EMBEDDING,
        *kin.PRE_NORMS,
        *latent.ATTENTION,
        *kin.GATED,
        *expert_rows("model.layers.{i}.mlp"),
        Move("model.layers.{i}.mlp.gate.e_score_correction_bias", "layers.{i}.ffn.router.choice_bias", when=kin.routed),
        *shared_rows("model.layers.{i}.mlp.shared_experts"),
        *kin.final_norm(),
        *kin.HEAD,
        *kin.FREQUENCIES,
        Beyond("model.layers.{i}.", "a layer that guesses further tokens (arXiv:2412.19437, section 2.2)"),
    ),
)
