"""Decoders of `transformers`, two layers each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import transformers as hf
from torch import nn

from tests.zoo.family import VOCAB, WIDTH, Family, class_labels, ids, token_labels

TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    **TOKENS,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
HEADS_OF_8 = {**GROUPED, "head_dim": 8}
STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2 = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 128, **STILL, **TOKENS}
SDPA = {"attn_implementation": "sdpa"}
EAGER = {"attn_implementation": "eager"}  # of models that offer no other
# Every token by itself: "grouped_mm" sorts tokens by expert and knows no fp64, the loop of "eager" depends on data.
EXPERTS = {**SDPA, "experts_implementation": "batched_mm"}
MOE = {"num_experts_per_tok": 2}


def model(
    kind: str, config: str, sizes: Mapping[str, Any], options: Mapping[str, str] = SDPA
) -> Callable[[], nn.Module]:
    """A builder of `hf.<kind>` from `hf.<config>(**sizes)`; options choose among its implementations."""

    def build() -> nn.Module:
        return getattr(hf, kind)(getattr(hf, config)(**sizes, **options))

    return build


def decoder(name: str, stem: str, sizes: Mapping[str, Any], options: Mapping[str, str] = SDPA) -> Family:
    """A causal language model called `<stem>ForCausalLM`."""
    build = model(f"{stem}ForCausalLM", f"{stem}Config", sizes, options)
    return Family(name, build, ids, token_labels(), packed=stem != "Mamba2")


ALIBI = {**TEXT, "alibi": True, "multi_query": False, "parallel_attn": False}
BLOOM = {"vocab_size": VOCAB, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4, **TOKENS}
MPT = {"vocab_size": VOCAB, "d_model": WIDTH, "n_layers": 2, "n_heads": 4, "max_seq_len": 128, **TOKENS}


def bloom() -> nn.Module:
    """Its GELU has a backward of its own, which no graph holds: torch's is the same function."""
    built = model("BloomForCausalLM", "BloomConfig", BLOOM, EAGER)()
    for block in built.transformer.h:
        block.mlp.gelu_impl = nn.GELU(approximate="tanh")
    return built


FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW = {"sliding_window": 5}
BOTH = {"layer_types": [SLIDING, FULL]}

DENSE = (
    decoder("Llama", "Llama", GROUPED),
    decoder("Qwen2", "Qwen2", GROUPED),
    decoder("Qwen2 (window)", "Qwen2", {**GROUPED, **WINDOW, **BOTH, "use_sliding_window": True}),
    decoder("Qwen3", "Qwen3", HEADS_OF_8),
    decoder("Mistral", "Mistral", {**GROUPED, "sliding_window": None}),
    decoder("Mistral (window)", "Mistral", {**GROUPED, **WINDOW}),
    decoder("Gemma 2", "Gemma2", {**HEADS_OF_8, **WINDOW, **BOTH, "query_pre_attn_scalar": 8}, EAGER),
    Family(
        "Gemma 3",
        model("Gemma3ForCausalLM", "Gemma3TextConfig", {**HEADS_OF_8, **WINDOW, **BOTH, "query_pre_attn_scalar": 8}),
        ids,
        token_labels(),
    ),
    Family("GPT-2", model("GPT2LMHeadModel", "GPT2Config", GPT2), ids, token_labels()),
    decoder("GPT-NeoX", "GPTNeoX", {**TEXT, "hidden_dropout": 0.0, "attention_dropout": 0.0}),
    decoder("OLMo 2", "Olmo2", GROUPED),
    decoder("Phi-3", "Phi3", {**GROUPED, "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
    decoder("Falcon", "Falcon", {**TEXT, "num_kv_heads": 2, "new_decoder_architecture": True}),
    decoder("Falcon (ALiBi)", "Falcon", ALIBI),
    decoder("Llama (eager)", "Llama", GROUPED, EAGER),
    Family("GPT-2 (eager)", model("GPT2LMHeadModel", "GPT2Config", GPT2, EAGER), ids, token_labels()),
    decoder("Falcon (ALiBi, eager)", "Falcon", ALIBI, EAGER),
    Family("Bloom", bloom, ids, token_labels()),
    decoder("MPT", "Mpt", MPT, EAGER),
    decoder("StableLM", "StableLm", {**GROUPED, "attention_dropout": 0.0, "hidden_dropout": 0.0}),
    decoder("Cohere", "Cohere", GROUPED),
    decoder("Granite", "Granite", GROUPED),
    decoder("SmolLM3", "SmolLM3", {**GROUPED, "no_rope_layers": [1, 0]}),
)

MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
ROUTED = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 16}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8, "mamba_expand": 2}

MIXTRAL = {**GROUPED, **MOE, "num_local_experts": 4}

MIXTURES = (
    decoder("Mixtral", "Mixtral", MIXTRAL, EXPERTS),
    # Its loss multiplies two means over all tokens: no sum over the ranks' own losses gives that.
    decoder("Mixtral (router loss)", "Mixtral", {**MIXTRAL, "output_router_logits": True}, EXPERTS),
    decoder(
        "Qwen3-MoE",
        "Qwen3Moe",
        {**HEADS_OF_8, **MOE, "num_experts": 4, "moe_intermediate_size": 16},
        EXPERTS,
    ),
    decoder(
        "DeepSeek-V3",
        "DeepseekV3",
        {**TEXT, **MOE, **MLA, **ROUTED, "num_key_value_heads": 4, "first_k_dense_replace": 1},
        EXPERTS,
    ),
    decoder("GPT-OSS", "GptOss", {**HEADS_OF_8, **MOE, **WINDOW, **BOTH, "num_local_experts": 4}, {**EXPERTS, **EAGER}),
)

STATE_SPACES = (
    decoder(
        "Mamba-2",
        "Mamba2",
        {
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "head_dim": 16,
            "state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
            **TOKENS,
        },
        EAGER,
    ),
    decoder("Bamba", "Bamba", {**GROUPED, **MAMBA, "attn_layer_indices": [1]}),
)

CLASSIFIERS = (
    Family(
        "Llama (sequence classification)",
        model("LlamaForSequenceClassification", "LlamaConfig", {**GROUPED, "num_labels": 3, "pad_token_id": 0}),
        ids,
        class_labels(3),
    ),
    Family(
        "Qwen2 (token classification)",
        model("Qwen2ForTokenClassification", "Qwen2Config", {**GROUPED, "num_labels": 3}),
        ids,
        token_labels(3),
    ),
    Family(
        "GPT-2 (token classification)",
        model("GPT2ForTokenClassification", "GPT2Config", {**GPT2, "num_labels": 3, "classifier_dropout": 0.0}),
        ids,
        token_labels(3),
    ),
)

DECODERS = (*DENSE, *MIXTURES, *STATE_SPACES, *CLASSIFIERS)
