"""Encoders, encoder-decoders and trunks of `transformers`, two layers each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.decoders import EAGER, SDPA, TEXT, TOKENS, model
from tests.zoo.family import BATCH, VOCAB, WIDTH, Family, Inputs, class_labels, ids, seeded, states, token_labels

QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT = {**TEXT, **QUIET, "pad_token_id": 0}
MODERN = {
    **TEXT,
    "global_attn_every_n_layers": 2,
    "local_attention": 8,
    "layer_types": ["full_attention", "sliding_attention"],
    "pad_token_id": 0,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "attention_dropout": 0.0,
    "embedding_dropout": 0.0,
    "mlp_dropout": 0.0,
}
DEBERTA = {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    **TOKENS,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
BART = {**SEQ2SEQ, "max_position_embeddings": 128, "forced_eos_token_id": None}
T5 = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
WHISPER = {**SEQ2SEQ, "max_target_positions": 128, "max_source_positions": 16, "num_mel_bins": 8}
VIT = {**TEXT, **QUIET, "image_size": 8, "patch_size": 2}
FRAMES = 10


def both_sides(length: int) -> dict[str, Tensor]:
    """Ids for the encoder and, as many, for the decoder."""
    return {**ids(length), "decoder_input_ids": ids(length + 100)["input_ids"][:, :length]}


def unlike_sides(length: int) -> dict[str, Tensor]:
    """As `both_sides`, from a source of three quarters of the length."""
    return {**both_sides(length), **ids(length * 3 // 4)}


def decoder_ids(length: int) -> dict[str, Any]:
    """Ids for the decoder; what the encoder gave for 10 frames is data, [B, 10, C]."""
    frames = torch.randn(BATCH, FRAMES, WIDTH, generator=seeded(3), dtype=torch.float64)
    return {"decoder_input_ids": ids(length)["input_ids"], "encoder_outputs": (frames,)}


class ViTTrunk(nn.Module):
    """The blocks of a ViT, hidden states in: its patch embedding fixes the number of patches.

    Its last norm is left out: the mean square of normalized values is a constant, without gradients to compare."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = model("ViTModel", "ViTConfig", VIT)()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, S, C] → [B, S, C]."""
        for layer in self.vit.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


def encoder(
    name: str, kind: str, config: str, sizes: Mapping[str, Any], labels: Inputs, options: Mapping[str, str] = SDPA
) -> Family:
    return Family(name, model(kind, config, sizes, options), ids, labels)


ENCODERS = (
    encoder("BERT (MLM)", "BertForMaskedLM", "BertConfig", BERT, token_labels()),
    encoder("BERT (MLM, eager)", "BertForMaskedLM", "BertConfig", BERT, token_labels(), EAGER),
    encoder(
        "BERT (sequence classification)",
        "BertForSequenceClassification",
        "BertConfig",
        {**BERT, "num_labels": 3},
        class_labels(3),
    ),
    encoder("RoBERTa (MLM)", "RobertaForMaskedLM", "RobertaConfig", BERT, token_labels()),
    encoder("ModernBERT (MLM)", "ModernBertForMaskedLM", "ModernBertConfig", MODERN, token_labels()),
    encoder("DeBERTa-v2 (MLM)", "DebertaV2ForMaskedLM", "DebertaV2Config", DEBERTA, token_labels(), EAGER),
    Family("ViT (trunk)", ViTTrunk, states("hidden_states"), mask=False),
)
SEQ2SEQS = (
    Family("T5", model("T5ForConditionalGeneration", "T5Config", T5), both_sides, token_labels()),
    Family("T5 (eager)", model("T5ForConditionalGeneration", "T5Config", T5, EAGER), both_sides, token_labels()),
    Family("BART", model("BartForConditionalGeneration", "BartConfig", BART), both_sides, token_labels()),
    Family(
        "BART (unlike lengths)",
        model("BartForConditionalGeneration", "BartConfig", BART),
        unlike_sides,
        token_labels(),
        mask=False,
    ),
    Family(
        "Whisper (decoder)",
        model("WhisperForConditionalGeneration", "WhisperConfig", WHISPER),
        decoder_ids,
        token_labels(),
        mask=False,
        sequence_dim={"decoder_input_ids": 1, "labels": 1},
    ),
)
