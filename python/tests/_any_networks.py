# SPDX-License-Identifier: Apache-2.0
"""Small networks of many kinds, each with its loss, and steps of them. None is known to the library here."""

import contextlib
import gc
import types

from _device import DEVICE
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import compact

TOKENS, WIDTH, VOCABULARY = 128, 128, 1024


def _tokens(rows=1, count=TOKENS):
    return torch.randint(10, VOCABULARY, (rows, count))


def _dtype(model):
    return next(model.parameters()).dtype


def _language_model(kind, config, **settings):
    x = _tokens()
    return getattr(transformers, kind)(getattr(transformers, config)(vocab_size=VOCABULARY, **settings)), lambda m: m(input_ids=x, labels=x).loss


def _decoder(kind, **settings):
    return _language_model(
        f"{kind}ForCausalLM", f"{kind}Config", hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, use_cache=False, **settings
    )


def llama():
    return _decoder("Llama", intermediate_size=344, attn_implementation="sdpa")


def llama_eager():
    return _decoder("Llama", intermediate_size=344, attn_implementation="eager", attention_dropout=0.1)


def mixtral():
    return _decoder("Mixtral", intermediate_size=176, num_local_experts=4, num_experts_per_tok=2, attn_implementation="sdpa")


def qwen3_moe():
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 86, "experts_implementation": "eager"}
    return _decoder("Qwen3Moe", intermediate_size=176, head_dim=32, attn_implementation="sdpa", **experts)


def bert():
    return _language_model("BertForMaskedLM", "BertConfig", hidden_size=WIDTH, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, attn_implementation="eager")


def gpt2():
    return _language_model("GPT2LMHeadModel", "GPT2Config", n_embd=WIDTH, n_layer=4, n_head=4, n_positions=TOKENS, use_cache=False, attn_implementation="eager")


def t5():
    settings = {"d_model": WIDTH, "d_ff": 344, "d_kv": 32, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu"}
    return _language_model("T5ForConditionalGeneration", "T5Config", decoder_start_token_id=0, pad_token_id=0, use_cache=False, **settings)


def vit():
    config = transformers.ViTConfig(
        hidden_size=WIDTH, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, image_size=80, patch_size=8, num_labels=10, attn_implementation="sdpa"
    )
    x, y = torch.randn(1, 3, 80, 80), torch.randint(0, 10, (1,))
    return transformers.ViTForImageClassification(config), lambda m: m(pixel_values=x.to(_dtype(m)), labels=y).loss


def whisper():
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(
        d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512,
        vocab_size=VOCABULARY, max_source_positions=256, max_target_positions=256, dropout=0.1, use_cache=False, attn_implementation="eager", **ids
    )  # fmt: skip
    x, y = torch.randn(1, 80, 512), _tokens()
    return transformers.WhisperForConditionalGeneration(config), lambda m: m(input_features=x.to(_dtype(m)), labels=y).loss


def qwen2_vl():
    text = {
        "hidden_size": WIDTH, "intermediate_size": 344, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6], "rope_type": "default"}, "max_position_embeddings": 1024, "bos_token_id": 1,
        "eos_token_id": 2, "use_cache": False,
    }  # fmt: skip
    vision = {"depth": 3, "embed_dim": WIDTH, "hidden_size": WIDTH, "num_heads": 4, "mlp_ratio": 4, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    config = transformers.Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=5, video_token_id=6, vision_start_token_id=3, vision_end_token_id=4, attn_implementation="sdpa"
    )
    x, pixels, grid = _tokens(), torch.randn(256, 1176), torch.tensor([[1, 16, 16]])
    x[:, 4], x[:, 5:69], x[:, 69] = 3, 5, 4
    more = {"image_grid_thw": grid, "mm_token_type_ids": (x == 5).int()}
    return transformers.Qwen2VLForConditionalGeneration(config), lambda m: m(input_ids=x, labels=x, pixel_values=pixels.to(_dtype(m)), **more).loss


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        self.convs = nn.ModuleList(nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in sizes)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and inputs == 4 * width
        self.down = None if same else nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = x
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = norm(conv(y if y is x else self.relu(y)))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class ResNet50(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks, inputs = [], width
        for stage, count in enumerate((3, 4, 6, 3)):
            for block in range(count):
                blocks.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
                inputs = (width << stage) * 4
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inputs, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def resnet50(samples=4, pixels=112, width=16):
    x, y = torch.randn(samples, 3, pixels, pixels), torch.randint(0, 10, (samples,))
    return ResNet50(width), lambda m: F.cross_entropy(m(x.to(_dtype(m))), y)


class TextNet(nn.Module):
    """An embedding, something between, a head."""

    def __init__(self, middle):
        super().__init__()
        self.table, self.middle, self.head = nn.Embedding(VOCABULARY, WIDTH), middle, nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        return self.head(self.middle(self.table(x)))


def _text_net(middle, rows, count):
    x = _tokens(rows, count)
    return TextNet(middle), lambda m: F.cross_entropy(m(x).float().view(-1, VOCABULARY), x.view(-1))


class Lstm(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


def lstm():
    return _text_net(Lstm(WIDTH, WIDTH, 2, batch_first=True, dropout=0.1), 1, 64)


class Cells(nn.LSTMCell):
    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], WIDTH)
        out = []
        for t in range(x.shape[1]):
            h, c = super().forward(x[:, t], (h, c))
            out.append(h)
        return torch.stack(out, 1)


def lstm_cells():
    return _text_net(Cells(WIDTH, WIDTH), 16, 64)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.dropout = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = (u.view(*u.shape[:2], 4, -1).transpose(1, 2) for u in self.qkv(self.norm1(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(y))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


def nano_gpt():
    return _text_net(nn.Sequential(*(Block() for _ in range(4)), nn.LayerNorm(WIDTH)), 1, TOKENS)


class Gat(nn.Module):
    def __init__(self):
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.ends, self.head = nn.Parameter(torch.randn(3, 2, 4, 16) * 0.1), nn.Linear(64, 7)

    def forward(self, x, source, target):
        for product, norm, (a, b) in zip(self.products, self.norms, self.ends, strict=True):
            z = product(x).view(-1, 4, 16)
            e = F.leaky_relu((z * a).sum(-1)[source] + (z * b).sum(-1)[target], 0.2)
            e = (e - e.max()).exp()
            alpha = e / (torch.zeros(len(x), 4, dtype=e.dtype).index_add(0, target, e)[target] + 1e-9)
            y = torch.zeros_like(z).index_add(0, target, z[source] * alpha.unsqueeze(-1)).flatten(1)
            x = F.dropout(F.elu(norm(y)), 0.2, self.training)
        return self.head(x)


def gat():
    x, source, target, y = torch.randn(2000, 64), torch.randint(0, 2000, (10000,)), torch.randint(0, 2000, (10000,)), torch.randint(0, 7, (2000,))
    return Gat(), lambda m: F.cross_entropy(m(x.to(_dtype(m)), source, target).float(), y)


NETWORKS = {
    f.__name__: f
    for f in (llama, llama_eager, mixtral, qwen3_moe, bert, gpt2, nano_gpt, vit, t5, whisper, qwen2_vl, resnet50, gat, lstm_cells, lstm)
}


class Masked(nn.Module):
    """Its caller gives it a mask of two values, and the targets of its loss."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(256, 256) for _ in range(3))

    def forward(self, x, mask, target):
        y = nn.functional.silu(self.a(x)) * mask
        y = torch.tanh(self.b(y)) * mask
        return types.SimpleNamespace(loss=(self.c(y) * mask - target).square().mean())


def masked_inputs():
    torch.manual_seed(0)
    return {"x": torch.randn(512, 256), "mask": (torch.rand(512, 256) < 0.7).float(), "target": torch.randn(512, 256)}


def build(name, kind):
    torch.manual_seed(0)
    model, loss_of = NETWORKS[name]()
    return model.to(torch.bfloat16 if kind == "bf16" else torch.float32).train(), loss_of


def train(name, kind, scope_of=None, steps=3):
    """Losses, then parameters, gradients and buffers after some steps, and the bytes held after the last forward pass."""
    model, loss_of = build(name, kind)
    scope = scope_of(model) if scope_of else contextlib.nullcontext()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    torch.manual_seed(5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        gc.collect()
        with compact.Meter() as meter:
            with scope, torch.autocast(DEVICE, torch.bfloat16, enabled=kind == "autocast"):
                loss = loss_of(model)
            held = meter.now
            loss.backward()
        losses.append(loss.detach().clone())
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return {"loss": torch.stack(losses), **gradients, **{f"state {n}": t for n, t in model.state_dict().items()}}, held
