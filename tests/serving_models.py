"""Small configs of the kinds of decoders that differ in what they keep of a text."""

_COMMON = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def _config(kind, cls, **fields):
    return {**_COMMON, "model_type": kind, "architectures": [cls], **fields}


TINY = {
    "llama": _config("llama", "LlamaForCausalLM"),
    "mistral": _config("mistral", "MistralForCausalLM", sliding_window=12),
    "mixtral": _config("mixtral", "MixtralForCausalLM", num_local_experts=5, num_experts_per_tok=2),
    "gemma2": _config("gemma2", "Gemma2ForCausalLM", head_dim=8, sliding_window=12, query_pre_attn_scalar=8),
    "gemma3": _config(
        "gemma3_text", "Gemma3ForCausalLM", head_dim=8, sliding_window=12, num_hidden_layers=3, sliding_window_pattern=3,
        query_pre_attn_scalar=8,
    ),
    "qwen2": _config("qwen2", "Qwen2ForCausalLM"),
    "qwen3": _config("qwen3", "Qwen3ForCausalLM", head_dim=16),
    "deepseek": _config(
        "deepseek_v3", "DeepseekV3ForCausalLM", num_key_value_heads=6, first_k_dense_replace=1, kv_lora_rank=20,
        q_lora_rank=24, qk_rope_head_dim=4, qk_nope_head_dim=12, v_head_dim=12, n_routed_experts=8, num_experts_per_tok=2,
        n_group=2, topk_group=1, n_shared_experts=1, moe_intermediate_size=24,
    ),
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64,
        "vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2,
    },
}  # fmt: skip
