"""Reference models, one self-contained file each, written for one device as anybody would write them."""

from sp.models.encoder import Encoder, EncoderConfig
from sp.models.gpt import GPT, GPTConfig
from sp.models.llama import Llama, LlamaConfig

__all__ = ["GPT", "Encoder", "EncoderConfig", "GPTConfig", "Llama", "LlamaConfig"]
