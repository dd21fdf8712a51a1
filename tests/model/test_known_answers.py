"""Logits and losses of a model whose weights are a stream of integers, computed elsewhere in float64."""

import pytest
import torch
import torch.nn.functional as F

from onehop.model import build
from tests.golden import case_config, case_model, golden_logits, golden_tensors
from tests.small_models import DYNAMIC, LONGROPE, decoder, small_model

# The figures are printed with 11 digits, and the largest logit is 8.
PRINTED = {"atol": 1e-8, "rtol": 0}
ATTENTION = {"n_heads": 4, "n_kv_heads": 2, "position": {"kind": "rope", "theta": 10000.0}}

WINDOW_IDS = [1, 5, 2, 9, 4, 7, 3, 0, 11]
WINDOW_OF_3 = [
    [-4.9436784237, -1.9222535835, -1.6318587734, -1.6474262815, 0.95395338863, 1.2470577931, 2.2708360286,
     -0.74737212674, 1.3772545307, -1.5655475704, -0.16414262777, -2.1364685801, -1.9084765587],
    [-2.4949302499, 3.4937527243, 0.80629910178, -2.5697742982, -4.8755024598, 0.11840373783, 3.7664591179,
     -1.788897752, 2.571292928, -4.1272946288, -0.088280263963, -2.6409424156, -2.7868740562],
    [-3.3376758326, -1.8549058831, -0.5162298981, 0.47427153102, 0.17921786485, 1.4300345492, 2.7787529849,
     -2.524253764, 1.3182868128, 0.82565792868, -1.1625982597, 0.82098010492, 1.1594851472],
    [-2.401332572, -0.82792322628, -1.3350205627, -0.49048783723, -0.030749505897, 1.268762644, -1.2046269882,
     0.48535832938, -0.78962708845, -2.331263208, -0.64644795159, -4.1265683631, -3.2892414772],
    [0.86164131651, 3.302258042, 2.0428125725, 2.1307535698, -5.3404006409, -2.6307692576, 0.68350172114,
     -3.5919914475, -0.67396759155, -1.3290370796, 4.9985844728, 0.74602792813, 0.68007715267],
    [-2.5450797131, 3.3773954503, -0.43261171547, -2.0919340608, -0.5631039197, 1.3345924425, 0.64270579998,
     -0.043958735782, 1.5342979037, -5.1261926617, -1.1738425658, -4.7348631369, -3.690520984],
    [-1.9084649093, 3.9593883825, 0.41122133924, -0.74601925554, -1.5442900233, 0.57815504346, -2.240701352,
     -1.5126354612, 1.7253260447, -4.1850778696, 1.7606142213, -4.3025387271, -4.0113085842],
    [-0.79031163082, 0.94795569218, -0.70916355391, -0.03940454963, -2.5678758926, 1.4171849163, 0.018056968298,
     -2.9911166565, 0.95583095322, -1.7031228463, -0.69808730687, -3.7252241499, 0.30692940154],
    [0.79847213313, 0.56084621353, -2.4271436085, 0.76229703006, -1.2741096472, 1.6676023269, 0.053489805261,
     1.3555008101, -0.9896802029, -2.3818800102, -4.8002686633, -2.4420429994, -0.42005355057],
]  # fmt: skip

DOCUMENTS = [[1, 5, 2, 9], [4, 7, 3], [0, 11, 6, 8, 2]]
PACKED = [1, 5, 2, 9, 4, 7, 3, 0, 11, 6, 8, 2, 0, 0]
AT = [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, -1, -1]
DOC = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, -1, -1]
TARGETS = [5, 2, 9, -100, 7, 3, -100, 11, 6, 8, 2, -100, -100, -100]
SURPRISE = [1.847009086583, 3.736807878047, 2.750720546348, 2.791396040669, 1.752148221254, 4.241564778416,
            5.233082496778, 6.369381197863, 3.583006272175]  # fmt: skip


def windowed(window):
    model = build(case_config(attention=ATTENTION | {"window": window}), dtype=torch.float64)
    model.load_state_dict(case_model().state_dict())
    return model


@torch.no_grad()
def test_a_window_of_3_gives_the_known_logits():
    logits = windowed(3)(torch.tensor([WINDOW_IDS]))[0]
    torch.testing.assert_close(logits, torch.tensor(WINDOW_OF_3, dtype=torch.float64), **PRINTED)


@torch.no_grad()
def test_two_layers_of_window_3_reach_4_tokens_back_and_no_further():
    model = windowed(3)
    changed = torch.tensor([[12, *WINDOW_IDS[1:]]])
    moved = (model(changed) != model(torch.tensor([WINDOW_IDS]))).any(-1)[0]
    assert moved.tolist() == [True] * 5 + [False] * 4


@torch.no_grad()
def test_a_window_as_long_as_the_text_hides_nothing():
    x = torch.tensor([WINDOW_IDS])
    torch.testing.assert_close(windowed(9)(x), windowed(None)(x), atol=1e-12, rtol=0)  # another kernel, other sums


@pytest.mark.parametrize("kernel", ["plain", "tiled", "fused"])
def test_packed_documents_give_the_known_surprises_and_the_gradients_of_each_alone(kernel):
    model = case_model()
    logits = model(torch.tensor([PACKED]), at=torch.tensor([AT]), doc=torch.tensor([DOC]), kernel=kernel)[0]
    surprise = F.cross_entropy(logits, torch.tensor(TARGETS), reduction="none")
    counted = surprise[torch.tensor(TARGETS) >= 0]
    torch.testing.assert_close(counted, torch.tensor(SURPRISE, dtype=torch.float64), **PRINTED)
    counted.sum().backward()
    packed = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for document in DOCUMENTS:
        alone = model(torch.tensor([document[:-1]]), kernel=kernel)[0]
        F.cross_entropy(alone, torch.tensor(document[1:]), reduction="sum").backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(packed[name], p.grad, atol=1e-10, rtol=0)  # sums in another order, gradients to 30


@torch.no_grad()
def test_documents_are_kept_apart_by_the_mask_and_not_by_their_positions():
    """Rotary scores do not notice that positions begin anew; without `doc` the documents see each other."""
    model = case_model()
    x, at, doc = torch.tensor([PACKED[:12]]), torch.tensor([AT[:12]]), torch.tensor([DOC[:12]])
    apart = model(x, at=at, doc=doc)
    torch.testing.assert_close(model(x, doc=doc), apart, atol=1e-10, rtol=0)  # angles of other positions
    assert (model(x, at=at) - apart).abs().max() > 0.1


@torch.no_grad()
def test_a_tied_head_is_the_embedding_and_gives_the_known_logits():
    model = build(case_config(head={"tied": True}), dtype=torch.float64)
    untied = case_model().state_dict()
    model.load_state_dict({name: untied[name] for name in model.state_dict()})
    torch.testing.assert_close(model.embed.tokens.weight, golden_tensors(tied=True)["model.embed_tokens.weight"])
    torch.testing.assert_close(model(torch.tensor([[1, 5, 2]])), golden_logits(tied=True), **PRINTED)
    assert sum(p.numel() for p in model.parameters()) == 4128
    assert sum(p.numel() for p in case_model().parameters()) == 4336


@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
@torch.no_grad()
def test_a_packed_document_has_the_angles_of_its_own_length_and_not_of_its_neighbours(scaling):
    """Beside a document of 12 tokens, beyond the original length of 8, one of 4 is read as it is alone."""
    model = small_model(decoder(scaling=scaling))
    texts = [list(range(12)), [5, 2, 9, 4], [7, 3]]
    tokens = torch.tensor([texts[0] + texts[1] + texts[2], texts[1] + texts[2] + texts[0]])
    at = torch.tensor([[*range(12), *range(4), *range(2)], [*range(4), *range(2), *range(12)]])
    doc = torch.tensor([[0] * 12 + [1] * 4 + [2] * 2, [7] * 4 + [5] * 2 + [6] * 12])
    alone = [model(torch.tensor([text]))[0] for text in texts]
    packed = model(tokens, at=at, doc=doc)
    torch.testing.assert_close(packed[0], torch.cat(alone), atol=1e-10, rtol=0)
    torch.testing.assert_close(packed[1], torch.cat([alone[1], alone[2], alone[0]]), atol=1e-10, rtol=0)
