"""Answers to chapters 6 and 8."""


def split_heads(x, heads):
    """(B, N, d) to (B, h, N, d/h)."""
    batch, tokens, d = x.shape
    return x.reshape(batch, tokens, heads, d // heads).transpose(0, 2, 1, 3)


def join_heads(x):
    """(B, h, N, d/h) to (B, N, d)."""
    batch, heads, tokens, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)


class Attention:
    def forward(ctx, q, k, v, heads):
        q, k, v = (split_heads(x, heads) for x in (q, k, v))
        scale = q.shape[-1] ** -0.5
        scores = q @ k.swapaxes(-1, -2) * scale
        scores -= scores.max(axis=-1, keepdims=True)  # softmax stays the same, and nothing overflows
        maps = np.exp(scores)
        maps /= maps.sum(axis=-1, keepdims=True)
        ctx.save(q, k, v, maps, scale)
        return join_heads(maps @ v)

    def backward(ctx, g):
        q, k, v, maps, scale = ctx.saved
        g = split_heads(g, q.shape[1])
        dv = maps.swapaxes(-1, -2) @ g
        dmaps = g @ v.swapaxes(-1, -2)
        dscores = maps * (dmaps - (dmaps * maps).sum(axis=-1, keepdims=True)) * scale
        dq = dscores @ k
        dk = dscores.swapaxes(-1, -2) @ q
        return join_heads(dq), join_heads(dk), join_heads(dv)


def mix_heads(maps, weight, bias):
    """One linear layer along the heads of (B, h, N, N)."""
    return linear(maps.transpose(0, 2, 3, 1), {"weight": weight, "bias": bias}).transpose(0, 3, 1, 2)


def talking_heads(qkv, weight_l, bias_l, weight_w, bias_w):
    batch, tokens, width = qkv.shape
    heads = weight_l.shape[0]
    q, k, v = (qkv.reshape(batch, tokens, 3, heads, width // (3 * heads)).transpose(2, 0, 3, 1, 4)[i] for i in range(3))
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    maps = Softmax.apply(mix_heads(scores, weight_l, bias_l))
    y = mix_heads(maps, weight_w, bias_w) @ v
    return y.transpose(0, 2, 1, 3).reshape(batch, tokens, width // 3)


def class_attention(z, w, heads):
    q = linear(z[:, :1], part(w, "q"))
    k = linear(z, part(w, "k"))
    v = linear(z, part(w, "v"))
    return linear(Attention.apply(q, k, v, heads=heads), part(w, "proj"))
