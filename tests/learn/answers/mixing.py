"""Answers to chapters 10 and 22."""


def mixup(images, targets, share):
    return share * images + (1 - share) * images[::-1], share * targets + (1 - share) * targets[::-1]


def cutmix(images, targets, box):
    top, bottom, left, right = box
    mixed = images.copy()
    mixed[..., top:bottom, left:right] = images[::-1, :, top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
    return mixed, share * targets + (1 - share) * targets[::-1]


def mix_token(x, targets, inside):
    mask = inside[..., None]
    mixed = x * ~mask + x[::-1] * mask
    of_tokens = np.where(inside.reshape(1, -1, 1), targets[::-1, None], targets[:, None])
    share = float(inside.mean())
    return mixed, of_tokens, (1 - share) * targets + share * targets[::-1]
