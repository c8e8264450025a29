"""A Llama or Qwen 3 of random weights in torch, as fast as its own parts go without a compiler: one matrix for queries,
keys and values and one for gate and up, scaled_dot_product_attention over a cache of fixed length, each step a graph.

benchmarks/gpu_models.py runs it in turns with gomlx."""
import time

import torch
from torch.nn import functional


def matrix(rows, columns, device, dtype):
    return torch.empty(rows, columns, device=device, dtype=dtype).normal_(0, 0.02)


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Decoder:
    def __init__(self, shape, device="cuda", dtype=torch.bfloat16):
        self.shape, self.device, self.dtype = shape, device, dtype
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.layers = [{"qkv": matrix(wide + 2 * narrow, shape.hidden, device, dtype),
                        "out": matrix(shape.hidden, wide, device, dtype),
                        "gate_up": matrix(2 * shape.mlp, shape.hidden, device, dtype),
                        "down": matrix(shape.hidden, shape.mlp, device, dtype)} for _ in range(shape.layers)]
        self.embedding = matrix(shape.vocab, shape.hidden, device, dtype)
        self.head = self.embedding if shape.tied else matrix(shape.vocab, shape.hidden, device, dtype)
        self.one, self.one_of_head = (torch.ones(n, device=device, dtype=dtype) for n in (shape.hidden, shape.head_dim))
        rates = shape.theta ** (torch.arange(0, shape.head_dim, 2, device=device).float() / -shape.head_dim)
        angles = torch.arange(40960, device=device).float()[:, None] * torch.cat((rates, rates))
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def norm(self, x):
        return functional.rms_norm(x, self.one.shape, self.one, 1e-5)

    def heads(self, x, weights, cos, sin):
        """Queries, keys and values of rows: [rows, heads, head_dim]."""
        s = self.shape
        made = functional.linear(self.norm(x), weights["qkv"]).view(len(x), -1, s.head_dim)
        q, k, v = made.split((s.heads, s.kv_heads, s.kv_heads), 1)
        if s.architecture == "qwen3":
            q, k = (functional.rms_norm(one, self.one_of_head.shape, self.one_of_head, 1e-5) for one in (q, k))
        return rotated(q, cos, sin), rotated(k, cos, sin), v

    def rest(self, x, attended, weights):
        """The layer after its attention."""
        x = x + functional.linear(attended, weights["out"])
        gate, up = functional.linear(self.norm(x), weights["gate_up"]).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, weights["down"])

    @torch.inference_mode()
    def prompt(self, ids, caches=None):
        """Logits after the last of ids, [n]; caches get their keys and values."""
        x, n = self.embedding[ids], len(ids)
        cos, sin = self.cos[:n, None], self.sin[:n, None]
        for i, weights in enumerate(self.layers):
            q, k, v = (one.transpose(0, 1)[None] for one in self.heads(x, weights, cos, sin))
            if caches is not None:
                caches[i][0][:, :, :n], caches[i][1][:, :, :n] = k, v
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = self.rest(x, attended[0].transpose(0, 1).reshape(n, -1), weights)
        return functional.linear(self.norm(x[-1]), self.head)

    def new_caches(self, batch, length):
        """Keys and values of each layer, [batch, heads, length, head_dim], random: time does not depend on them."""
        shape = (batch, self.shape.kv_heads, length, self.shape.head_dim)
        return [[torch.empty(shape, device=self.device, dtype=self.dtype).normal_() for _ in range(2)]
                for _ in self.layers]

    @torch.inference_mode()
    def step(self, tokens, position, caches):
        """One more token of each sequence, in place: tokens [batch] become the next ones, position [1] grows."""
        s, batch = self.shape, len(tokens)
        x = self.embedding[tokens]
        cos, sin = self.cos.index_select(0, position), self.sin.index_select(0, position)
        seen = (torch.arange(caches[0][0].shape[2], device=self.device) <= position)[None, None, None]
        seen = seen.expand(batch, s.kv_heads, s.heads // s.kv_heads, -1)
        for (keys, values), weights in zip(caches, self.layers, strict=True):
            q, k, v = self.heads(x, weights, cos, sin)
            keys.index_copy_(2, position, k[:, :, None])
            values.index_copy_(2, position, v[:, :, None])
            # Queries that share keys are rows of one head: no key is copied for them.
            attended = functional.scaled_dot_product_attention(q.reshape(batch, s.kv_heads, -1, s.head_dim), keys,
                                                               values, attn_mask=seen)
            x = self.rest(x, attended.reshape(batch, -1), weights)
        logits = functional.linear(self.norm(x), self.head)
        tokens.copy_(logits.argmax(-1))
        position.add_(1)
        return logits

    def prefill_seconds(self, count):
        ids = torch.arange(count, device=self.device) % 1000
        torch.cuda.synchronize()
        started = time.perf_counter()
        self.prompt(ids).argmax().item()
        return time.perf_counter() - started

    def steps(self, depth, batch, most, graphed):
        """A function that decodes n tokens after `depth` of `batch` sequences, and takes that many seconds."""
        caches = self.new_caches(batch, (depth + most + 63) // 64 * 64)
        tokens = torch.zeros(batch, device=self.device, dtype=torch.int64)
        position = torch.full((1,), depth, device=self.device, dtype=torch.int64)
        begin = step = lambda: self.step(tokens, position, caches)
        beside = torch.cuda.Stream()
        with torch.cuda.stream(beside):         # libraries choose and take memory before a graph is made
            step()
        torch.cuda.synchronize()
        if graphed:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            begin = graph.replay

        def seconds(n, kept=(tokens, caches)):          # which the graph has only addresses of
            position.fill_(depth)
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(n):
                begin()
            torch.cuda.synchronize()
            return time.perf_counter() - started

        return seconds
