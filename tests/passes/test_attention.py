"""Attentions are rewritten with the mask, the heads and the scale that they have, or refused with the reason."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from sp.mask import CAUSAL, FULL, Band
from sp.passes.attention import SDPA, RewriteAttention
from sp.passes.fxtools import op_name
from sp.passes.manager import run_passes
from sp.program import Program
from sp.runtime.kernels import choose_kernel, filling
from sp.testing.trial import run_whole
from tests.passes.masks import visible
from tests.passes.programs import normalized, rewritten


def refusal(way: Callable[[Tensor], Tensor]) -> str:
    return refusals(rewritten(way))


def refusals(program: Program) -> str:
    """What `place` will raise."""
    return "\n".join(map(str, program.refused.values()))


sdpa = F.scaled_dot_product_attention


def values(program: Program, *inputs: Tensor) -> list[Any]:
    *_, result = run_whole(program.graph_module, inputs).values()
    return list(result)


def test_scale() -> None:
    program = rewritten(lambda x: sdpa(x, x, x, scale=0.3) + sdpa(x, x, x))
    scales = [node.args[6] for node in program.graph.nodes if op_name(node) == "sp.attention"]
    assert scales == [0.3, pytest.approx(8**-0.5)]
    x = torch.randn(2, 4, 9, 8)
    torch.testing.assert_close(values(program, x)[-1], sdpa(x, x, x, scale=0.3) + sdpa(x, x, x))


def window(x: Tensor) -> Tensor:
    places = torch.arange(x.shape[2])
    return places[None, :] > places[:, None] - 3


REFUSED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "dropout": ("it drops out scores with probability 0.1", lambda x: sdpa(x, x, x, dropout_p=0.1)),
    "three dims": ("its operands are not (batch, heads, sequence, head width)", lambda x: sdpa(x[0], x[0], x[0])),
    "every second key": ("queries, keys and values have lengths", lambda x: sdpa(x, x[:, :, ::2], x[:, :, ::2])),
    "batch of the keys": ("which it broadcasts", lambda x: sdpa(x, x[:1], x[:1])),
    "batch of the queries": ("which it broadcasts", lambda x: sdpa(x[:1], x, x)),
    "heads of the queries": ("which it broadcasts", lambda x: sdpa(x[:, :1], x, x)),
    "heads of keys alone": ("which it broadcasts", lambda x: sdpa(x, x[:, :1], x)),
    "running sum of a mask": (
        "its mask is not known tile by tile: aten.cumsum does not work element by element (at cumsum)",
        lambda x: sdpa(x, x, x, attn_mask=(window(x) | (x[:, :, :, :1] > 0)).cumsum(-1) < 3),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    reason, way = REFUSED[name]
    text = refusal(way)
    assert reason in text
    assert "programs.py" in text  # the line of the forward that called it
    assert "remedy:" in text


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(64, 64, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        return sdpa(x, x, x, attn_mask=self.mask[: x.shape[2], : x.shape[2]])


def test_mask_in_a_buffer_is_data() -> None:
    """Its contents may change after capture."""
    program = normalized(Buffered(), torch.zeros(2, 4, 9, 8))
    (site,) = RewriteAttention().run(program.fork()).attentions
    assert (site.mask, str(site.score)) == (FULL, "l0:qk -> visible=l0")


def test_windows_over_fewer_keys() -> None:
    program = rewritten(lambda x: sdpa(x, *[x[:, :, 5:]] * 2, attn_mask=window(x)[:, 5:]))
    assert program.attentions[0].mask == Band(7, None)


def test_keys_of_another_length() -> None:
    program = rewritten(lambda x: sdpa(x, x[:, :, 1:], x[:, :, 1:]))
    (site,) = program.attentions
    assert (site.mask, site.queries - site.keys) == (FULL, 1)


def test_a_sequence_in_another_dim_is_no_attention_of_ours() -> None:
    """Each token attends to its own heads: nothing travels."""
    assert not rewritten(lambda x: sdpa(*[x.transpose(1, 2)] * 3)).attentions


def test_constants_made_by_torch_tensor() -> None:
    def way(x: Tensor) -> Tensor:
        seen = torch.arange(x.shape[2])[:, None] >= torch.arange(x.shape[2])
        return sdpa(x, x, x, attn_mask=torch.where(seen, torch.tensor(0.0), torch.tensor(float("-inf"))))

    assert rewritten(way).attentions[0].mask == CAUSAL


def test_mask_made_without_gradients() -> None:
    """`normalize` dissolves its graph; without it, the mask is a result of what nobody looks into."""

    def way(x: Tensor) -> Tensor:
        with torch.no_grad():
            mask = torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril()
        return sdpa(x, x, x, attn_mask=mask)

    assert "getitem does not work element by element" in refusal(way)


def test_all_refusals_at_once() -> None:
    text = refusal(lambda x: sdpa(x, x, x, dropout_p=0.1) + sdpa(x, x, x) + sdpa(x[0], x[0], x[0]))
    assert "scaled_dot_product_attention: " in text
    assert "scaled_dot_product_attention_2: " in text


@pytest.mark.parametrize(
    ("size", "value_size", "device", "kernel", "why"),
    [
        (8, 8, "cpu", "flash", ""),
        (12, 8, "cpu", "flash", "values of head size 8 filled up to 12 for flash"),
        (8, 12, "cpu", "flash", "queries and keys of head size 8 filled up to 12 for flash"),
        (
            60,
            60,
            "cuda",
            "flash",
            "queries, keys and values of head size 60 filled up to 64 for flash",
        ),
        (192, 128, "cuda", "flash", "values of head size 128 filled up to 192 for flash"),
        (576, 512, "cuda", "dense", ""),
    ],
)
def test_kernel_for_head_sizes(size: int, value_size: int, device: str, kernel: str, why: str) -> None:
    """Those of DeepSeek's attention among them; what is filled up is in the report."""
    with FakeTensorMode():
        q, v = (torch.empty(2, 4, 9, n, dtype=torch.bfloat16, device=device) for n in (size, value_size))
        assert choose_kernel(q, q, v) == kernel
        assert kernel == "dense" or filling(q, v) == why
    if device == "cpu":
        (site,) = rewritten(lambda x: sdpa(*[F.pad(x, (0, size - 8))] * 2, F.pad(x, (0, value_size - 8)))).attentions
        assert site.kernel == kernel
        assert site.why == "; ".join(filter(None, ("as many key heads as query heads", why)))


def tiny(name: str, **more: Any) -> nn.Module:
    """One layer of a transformers model, with random weights."""
    transformers = pytest.importorskip("transformers")
    config = {
        "vocab_size": 31,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        **more,
    }
    if name == "GPT2":
        config = {"vocab_size": 31, "n_embd": 16, "n_layer": 1, "n_head": 4, "n_positions": 64}
        config |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    if name == "Bert":
        config.pop("num_key_value_heads")
    head = {"Bert": "BertForMaskedLM", "GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    return getattr(transformers, head)(getattr(transformers, f"{name}Config")(**config)).eval()


TRANSFORMERS = {
    "Llama": (CAUSAL, {}),
    "Qwen3": (CAUSAL, {"head_dim": 4}),
    "GPT2": (CAUSAL, {}),
    "Mistral": (Band(4, 0), {"sliding_window": 5}),
    "Bert": (FULL, {}),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_masks_of_transformers(name: str) -> None:
    """Proven, and held against the mask that the captured graph computes at several lengths."""
    band, options = TRANSFORMERS[name]
    program = normalized(tiny(name, **options), torch.zeros(2, 12, dtype=torch.long), sequence_dim=1)
    assert {site.mask for site in run_passes(program, [RewriteAttention()]).attentions} == {band}
    (attention,) = [node for node in program.graph.nodes if op_name(node) == SDPA]
    mask = attention.args[3] if len(attention.args) > 3 else attention.kwargs.get("attn_mask")
    if mask is None:
        is_causal = attention.kwargs.get("is_causal", False) or (len(attention.args) > 5 and attention.args[5])
        assert (CAUSAL if is_causal else FULL) == band
        return
    for length in (3, 8, 17):
        computed = run_whole(program.graph_module, [torch.zeros(2, length, dtype=torch.long)])[mask]
        seen = computed if computed.dtype == torch.bool else computed == 0
        assert torch.equal(seen, visible(band, length).expand_as(seen))


OF_INPUTS = {
    ("Llama", "attention_mask"): "causal & padding (attention_mask)",
    ("Mistral", "attention_mask"): "window(3, 0) & padding (attention_mask)",
    ("Bert", "attention_mask"): "padding (attention_mask)",
    ("Llama", "position_ids"): "order (position_ids) & documents (position_ids)",
}


@pytest.mark.parametrize(("name", "given"), OF_INPUTS)
def test_masks_of_transformers_that_depend_on_inputs(name: str, given: str) -> None:
    ids = torch.zeros(2, 12, dtype=torch.long)
    options = {"sliding_window": 4} if name == "Mistral" else {}
    program = normalized(tiny(name, **options), ids, sequence_dim=1, use_cache=False, **{given: torch.ones_like(ids)})
    (site,) = run_passes(program, [RewriteAttention()]).attentions
    assert site.scores == OF_INPUTS[name, given]
