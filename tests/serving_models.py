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

_MIXED = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8}
HYBRID = {  # those that keep recurrent states, alone or beside keys and values
    "mamba": _config("mamba", "MambaForCausalLM", state_size=8, conv_kernel=4),
    "mamba2": _config(
        "mamba2", "Mamba2ForCausalLM", state_size=8, num_heads=6, head_dim=16, n_groups=2, chunk_size=8
    ),
    "jamba": _config(
        "jamba", "JambaForCausalLM", num_experts=4, num_experts_per_tok=2, attn_layer_period=2, attn_layer_offset=1,
        expert_layer_period=2, expert_layer_offset=1, mamba_d_state=8,
    ),
    "zamba2": _config(
        "zamba2", "Zamba2ForCausalLM", num_hidden_layers=4, num_key_value_heads=6, mamba_d_state=8, mamba_headdim=16,
        n_mamba_heads=6, mamba_ngroups=1, chunk_size=8, layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
        num_mem_blocks=1, adapter_rank=8,
    ),
    "falcon_h1": _config("falcon_h1", "FalconH1ForCausalLM", mamba_d_ssm=96, **_MIXED),
    "recurrent_gemma": _config(
        "recurrent_gemma", "RecurrentGemmaForCausalLM", num_hidden_layers=3, lru_width=48, attention_window_size=12
    ),
    "bamba": _config("bamba", "BambaForCausalLM", attn_layer_indices=[1], **_MIXED),
    "granite": _config(
        "granitemoehybrid", "GraniteMoeHybridForCausalLM", layer_types=["mamba", "attention"], num_local_experts=4,
        num_experts_per_tok=2, shared_intermediate_size=32, **_MIXED,
    ),
}  # fmt: skip
