# SPDX-License-Identifier: Apache-2.0
import pytest
import transformers
from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.plans import COLUMNS, ROWS, SUMMED, SUMMED_TAIL, count_own_heads, tensor_plan

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 50,
}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 50}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 50}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
MODELS = {
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
    "roberta": lambda: transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SIZES)),
    "albert": lambda: transformers.AlbertForMaskedLM(transformers.AlbertConfig(**SIZES, embedding_size=16)),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**DISTILBERT)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "bart": lambda: transformers.BartForSequenceClassification(transformers.BartConfig(**BART)),
}


@pytest.mark.parametrize(
    ("name", "columns", "rows"),
    [("bert", 8, 4), ("roberta", 8, 4), ("albert", 4, 2), ("distilbert", 8, 4), ("llama", 10, 4), ("bart", 22, 10)],
)
def test_every_block_is_shared_and_nothing_else(name, columns, rows):
    module = nn.ModuleDict({"net": MODELS[name]()})
    plan = tensor_plan(module, 2)
    assert list(plan.values()).count(COLUMNS) == columns
    assert list(plan.values()).count(ROWS) == rows
    assert all(isinstance(module.get_submodule(path), nn.Linear) for path in plan)
    assert not any(part in path for path in plan for part in ("embed", "pooler", "classifier", "head", "vocab"))


def test_what_each_rank_has_complete_but_uses_for_its_own_heads_is_summed():
    """The norms of queries and keys, and a rotary key that all heads share, whether transformers' plans name them or not."""
    heads = {"num_key_value_heads": 4, "head_dim": 8}
    qwen = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **heads))
    glm = transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**SIZES, **heads, use_qk_norm=True))
    for model in (qwen, glm):
        plan = tensor_plan(model, 2)
        assert sorted({path.rpartition(".")[2] for path, style in plan.items() if style == SUMMED}) == [
            "k_norm",
            "q_norm",
        ]
    latent = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "q_lora_rank": None}
    experts = {"n_routed_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    config = transformers.DeepseekV2Config(**SIZES, num_key_value_heads=4, **latent, **experts)
    deepseek = tensor_plan(transformers.DeepseekV2ForCausalLM(config), 2)
    tails = [path for path, style in deepseek.items() if style == SUMMED_TAIL]
    assert tails == [f"model.layers.{layer}.self_attn.kv_a_proj_with_mqa" for layer in range(2)]


def test_each_model_follows_its_own_plan():
    """Two halves of different types; those without a plan stay whole, even where some of their names are in another's."""
    image = transformers.BeitModel(transformers.BeitConfig(**{**SIZES, "image_size": 8, "patch_size": 4}))
    module = nn.ModuleDict({"image": image, "text": MODELS["distilbert"](), "more": MODELS["bert"]()})
    plan = tensor_plan(module, 2)
    assert {path.partition(".")[0] for path in plan} == {"text", "more"}
    assert plan == {**tensor_plan(nn.ModuleDict({"text": module["text"]}), 2)} | {
        **tensor_plan(nn.ModuleDict({"more": module["more"]}), 2)
    }


@pytest.mark.parametrize(("name", "targets"), [("bert", "all-linear"), ("llama", ["q_proj", "o_proj", "down_proj"])])
def test_adapters_are_shared_as_their_matrices_are(name, targets):
    peft = pytest.importorskip("peft")
    task = {"task_type": "SEQ_CLS"} if name == "bert" else {}
    plain, model = tensor_plan(MODELS[name](), 2), MODELS[name]()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, **task))
    plan = tensor_plan(adapted, 2)
    prefix = "base_model.model."
    for path, style in plain.items():
        own = "lora_B" if style == COLUMNS else "lora_A"
        parts = {key.removeprefix(prefix + path): value for key, value in plan.items() if key.startswith(prefix + path)}
        assert parts in ({"": style}, {".base_layer": style, f".{own}.default": style})
    count_own_heads(adapted, plan, 2)
    attention = next(module for module in model.modules() if hasattr(module, "q_proj") or hasattr(module, "query"))
    assert getattr(attention, "num_attention_heads", 2) == 2


def test_other_adapters_are_refused():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(MODELS["bert"](), peft.LoraConfig(r=2, target_modules=["query"], use_dora=True))
    with pytest.raises(ParallelConfigError, match=r"attention\.self\.query is a peft.*HINT: use plain LoRA"):
        tensor_plan(adapted, 2)


@pytest.mark.parametrize("name", MODELS)
def test_attention_counts_its_own_heads(name):
    model = MODELS[name]()
    count_own_heads(model, tensor_plan(model, 2), 2)
    counts = {
        (key, value)
        for module in model.modules()
        for key, value in vars(module).items()
        if key in ("num_attention_heads", "n_heads", "num_heads", "all_head_size")
    }
    assert all(value == {"all_head_size": 16}.get(key, 2) for key, value in counts)
    assert model.config.num_attention_heads == 4


@pytest.mark.parametrize(
    ("module", "degree", "message"),
    [
        (MODELS["bert"](), 3, "num_attention_heads=4.*HINT"),
        (nn.Linear(2, 2), 2, "no transformers model.*HINT"),
        (
            transformers.CTRLLMHeadModel(transformers.CTRLConfig(vocab_size=50, n_embd=8, n_layer=1, n_head=2, dff=8)),
            2,
            "no plan for ctrl.*HINT",
        ),
        (
            transformers.BartModel(
                transformers.BartConfig(
                    vocab_size=50,
                    d_model=12,
                    encoder_layers=1,
                    decoder_layers=1,
                    encoder_attention_heads=3,
                    decoder_attention_heads=3,
                    encoder_ffn_dim=8,
                    decoder_ffn_dim=8,
                )
            ),
            2,
            "num_(attention_)?heads=3.*HINT",
        ),
        (
            transformers.DebertaV2Model(
                transformers.DebertaV2Config(
                    **SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], share_att_key=False
                )
            ),
            2,
            "does not know .*pos_(key|query)_proj.*HINT",
        ),
    ],
    ids=["heads", "plain", "ctrl", "heads of a decoder", "layer without a plan"],
)
def test_what_cannot_be_shared_is_refused(module, degree, message):
    with pytest.raises(ParallelConfigError, match=message):
        tensor_plan(module, degree)
