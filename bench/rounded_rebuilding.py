#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Codecs that round beside rebuilding: bytes held, and how far off gradients are, with each tensor in codes and with what follows smoothly rebuilt from codes.

For ResNet-50, BERT and LLaMA of transformers in f32: the bytes that PyTorch saves, how many times fewer are held, the relative error of all gradients
(mean of draws), and the part of it that does not average out: what two halves of the draws have in common.

    python bench/rounded_rebuilding.py [--bits 8,4,2] [--draws 8] [--models resnet,bert,llama]
    python bench/rounded_rebuilding.py --train 10    # test accuracies of a GAT on Cora (in COMPACT_DATA) over so many seeds
"""
import argparse
import os
import statistics
from pathlib import Path

import numpy
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import compact


def policies(bits):
    codes = f"slot * = quantize:bits={bits}"
    return {"codes": codes, "rebuilt": codes + "\nslot role:cheap = recompute"}


def resnet(draw):
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=10))
    return model, {"pixel_values": torch.randn(8, 3, 64, 64, generator=draw), "labels": torch.randint(10, (8,), generator=draw)}


def bert(draw):
    config = transformers.BertConfig(vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    ids = torch.randint(1000, (8, 128), generator=draw)
    return transformers.BertForSequenceClassification(config), {"input_ids": ids, "labels": torch.arange(8) % 2}


def llama(draw):
    config = transformers.LlamaConfig(vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=688)
    ids = torch.randint(1000, (8, 128), generator=draw)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


MODELS = {"resnet": resnet, "bert": bert, "llama": llama}


def gradient(model, batch, policy, draw):
    """All gradients in one vector, the bytes held after the forward pass, and those that PyTorch saves."""
    model.zero_grad(set_to_none=True)
    saved = compact.saved_tensors(policy, model=model)
    torch.manual_seed(1000 + draw)  # of roundings
    with saved:
        loss = model(**batch).loss
    held, whole = saved.live_bytes, sum(t.bytes for t in saved.report() if not t.shared)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), held, whole


def measure(name, bits, draws):
    torch.manual_seed(0)
    model, batch = MODELS[name](torch.Generator().manual_seed(1))
    model.train()
    for module in model.modules():  # every draw computes the same but for the roundings
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    wanted, _, whole = gradient(model, batch, "off", 0)
    row = []
    for policy in policies(bits).values():
        sums, errors = [torch.zeros_like(wanted), torch.zeros_like(wanted)], []
        for draw in range(draws):
            got, held, _ = gradient(model, batch, policy, draw)
            errors.append(float((got - wanted).norm() / wanted.norm()))
            sums[draw % 2] += got - wanted
        common = float(sums[0] @ sums[1]) / (draws // 2) ** 2
        row.append((whole / held, statistics.mean(errors), max(common, 0) ** 0.5 / float(wanted.norm())))
    return whole, row


class Attention(nn.Module):
    """Graph attention (Velickovic et al. 2018) over edges."""

    def __init__(self, width, heads, out):
        super().__init__()
        self.heads, self.out, self.linear = heads, out, nn.Linear(width, heads * out, bias=False)
        self.into, self.out_of, self.bias = (nn.Parameter(torch.empty(*size)) for size in ((heads, out), (heads, out), (heads * out,)))
        for weight in (self.linear.weight, self.into, self.out_of):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.bias)

    def forward(self, x, source, target):
        h = self.linear(F.dropout(x, 0.6, self.training)).view(len(x), self.heads, self.out)
        scores = F.leaky_relu((h * self.out_of).sum(-1)[source] + (h * self.into).sum(-1)[target], 0.2)
        scores = (scores - scores.max()).exp()
        sums = torch.zeros(len(x), self.heads).index_add(0, target, scores)
        weights = F.dropout(scores / (sums[target] + 1e-16), 0.6, self.training)
        return torch.zeros_like(h).index_add(0, target, weights[..., None] * h[source]).flatten(1) + self.bias


class Gat(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.first, self.second = Attention(width, 8, 8), Attention(64, 1, classes)

    def forward(self, x, source, target):
        return self.second(F.elu(self.first(x, source, target)), source, target)


def cora():
    """Features, labels, edges with self-loops, and masks: 20 nodes of each class to train on, 500 and 1000 others."""
    data = numpy.load(Path(os.environ["COMPACT_DATA"]) / "graph" / "cora.npz")

    def pairs(name):
        starts = data[f"{name}_indptr"]
        return torch.from_numpy(numpy.stack([numpy.repeat(numpy.arange(len(starts) - 1), numpy.diff(starts)), data[f"{name}_indices"]])).long()

    labels = torch.from_numpy(data["labels"]).long()
    x = torch.zeros(*data["attr_shape"])
    x[tuple(pairs("attr"))] = 1
    source, target = pairs("adj")
    loop = torch.arange(len(x))
    both = torch.stack([torch.cat([source, target, loop]), torch.cat([target, source, loop])])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train = torch.cat([order[labels[order] == c][:20] for c in range(int(labels.max()) + 1)])
    rest = order[~torch.isin(order, train)]
    return x / x.sum(1, keepdim=True).clamp(1), labels, both.unique(dim=1), (train, rest[:500], rest[500:1500])


def accuracy(data, policy, seed, epochs):
    """In percent, on the test nodes, at the epoch that is best on those for validation."""
    x, labels, edges, (train, valid, test) = data
    torch.manual_seed(seed)
    model = Gat(x.shape[1], int(labels.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    saved = compact.saved_tensors(policy, model=model)
    best = (0.0, 0.0)
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        with saved:
            loss = F.cross_entropy(model(x, *edges)[train], labels[train])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(x, *edges).argmax(1) == labels).float()
        best = max(best, (float(right[valid].mean()), float(right[test].mean())), key=lambda pair: pair[0])
    return 100 * best[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", default="8,4,2")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--draws", type=int, default=8, help="of roundings, an even number")
    parser.add_argument("--train", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    bits = [int(b) for b in options.bits.split(",")]
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {torch.get_num_threads()} threads")
    if options.train:
        data = cora()
        ways = {"full": "off"} | {f"{b} bits, {way}": policy for b in bits for way, policy in policies(b).items()}
        for name, policy in ways.items():
            all_ = [accuracy(data, policy, seed, options.epochs) for seed in range(options.train)]
            spread = statistics.stdev(all_) if len(all_) > 1 else 0
            print(f"{name:16} {statistics.mean(all_):6.2f} % ± {spread:.2f}  " + " ".join(f"{one:.1f}" for one in all_), flush=True)
        return
    print("model   bits  bytes saved   times fewer: codes, rebuilt   error of one pass   that does not average out")
    for name in options.models.split(","):
        for b in bits:
            whole, ((less, error, common), (less2, error2, common2)) = measure(name, b, options.draws)
            print(f"{name:7} {b:4} {whole:12}   {less:11.1f} {less2:15.1f}   {error:9.3f} {error2:7.3f}   {common:12.3f} {common2:7.3f}", flush=True)


if __name__ == "__main__":
    main()
