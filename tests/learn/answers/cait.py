"""Answers to chapters 7 and 8."""


def self_attention_block(x, w, heads, drop=unchanged):
    x = x + drop(w["gamma_1"] * self_attention(layer_norm(x, part(w, "norm1")), part(w, "attn"), heads))
    return x + drop(w["gamma_2"] * feed_forward(layer_norm(x, part(w, "norm2")), part(w, "mlp")))


def drop_path(branch, rate, rng):
    if rng is None:
        return branch
    kept = rng.random((branch.shape[0], 1, 1)) >= rate
    return branch * (kept / (1 - rate))


def class_attention_block(x_class, patches, w, heads):
    z = Concat.apply(x_class, patches, axis=1)
    x = x_class + w["gamma_1"] * class_attention(layer_norm(z, part(w, "norm1")), part(w, "attn"), heads)
    return x + w["gamma_2"] * feed_forward(layer_norm(x, part(w, "norm2")), part(w, "mlp"))


def cait(images, w, heads):
    patches = patch_embed(images, part(w, "patch_embed")) + w["pos_embed"]
    for i in range(count(w, "blocks")):
        patches = self_attention_block(patches, part(w, f"blocks.{i}"), heads)
    x_class = w["cls_token"] + np.zeros((patches.shape[0], 1, patches.shape[2]))
    for i in range(count(w, "blocks_token_only")):
        x_class = class_attention_block(x_class, patches, part(w, f"blocks_token_only.{i}"), heads)
    return linear(layer_norm(x_class[:, 0], part(w, "norm")), part(w, "head"))
