"""Advice for a full GPU, as far as it is arithmetic."""

import math

import pytest

from minicait import create_model
from minicait.models import find_model
from minicait.run.advice import POOL, MemoryEstimate, evaluation_memory, memory_advice, training_memory
from minicait.train import Recipe


def test_a_piece_that_fits_is_a_power_of_two_and_at_most_half():
    estimate = MemoryEstimate(images=24, per_image=100, fixed=1000)
    rooms = {0: 0, 1099: 0, 1100: 1, 1399: 2, 1400: 4, 1799: 4, 1800: 8, 10**9: 8}
    assert {room: estimate.fitting_micro_batch(room) for room in rooms} == rooms
    assert estimate._replace(images=1).fitting_micro_batch(10**9) == 0


def test_what_training_and_evaluation_need():
    model = create_model("cait_tiny_32", num_classes=10)
    own, image = model.cost(), 4 * 3 * 32 * 32
    each = math.ceil(POOL * (own.gpu_activation_bytes("fp32") + own.forward_bytes))
    plain = training_memory(model, Recipe(batch_size=8))
    assert plain == (8, each, 5 * 4 * own.parameters + 8 * image)
    labelled = training_memory(model, Recipe(batch_size=8), token_labels=True)
    assert labelled.fixed - plain.fixed == 4 * 8 * model.config.patches * model.num_classes
    more = training_memory(model, Recipe(batch_size=8, ema_decay=0.9, accumulate=2), micro_batch=3, teacher=model)
    assert more == (3, each, 8 * 4 * own.parameters + 8 * image)
    half = training_memory(model, Recipe(batch_size=8, precision="fp16"))
    assert half.fixed - plain.fixed == 2 * own.parameters and 0.5 * each < half.per_image < 0.7 * each
    assert evaluation_memory(model, 64) == (64, own.forward_bytes + image, 4 * own.parameters)
    assert evaluation_memory(model, 4, micro_batch=16).images == 4
    assert own.forward_bytes < own.activation_bytes / 4


def test_on_a_cpu_nothing_is_said():
    with pytest.raises(MemoryError, match=r"^as it is$"), memory_advice("cpu", MemoryEstimate(8, 100, 1000), "less"):
        raise MemoryError("as it is")


def test_what_a_gpu_saves_is_counted_by_dtype():
    """Of CaiT's maps nothing, unless there are more keys than its fused kernel takes. Norms stay float32."""
    config = find_model("cait_xxs24_224")[1]
    own, maps = config.cost(), 24 * 4 * 4 * 196 * 196
    norms = 4 * (24 * 2 * 196 + 2 * (197 + 1) + 1) * (192 + 1)
    assert own.recomputed_bytes == maps
    assert own.gpu_activation_bytes("fp32") == own.gpu_activation_bytes("tf32") == own.activation_bytes - maps
    assert 2 * own.gpu_activation_bytes("fp16") == own.activation_bytes - maps + norms
    assert config.changed(img_size=(528, 528)).cost().recomputed_bytes == 0
    assert find_model("deit_tiny_patch16_224")[1].cost().recomputed_bytes == 0
