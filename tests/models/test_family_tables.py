"""Sizes of all families beside CaiT: those in the tables of the thesis and of the paper on token labeling."""

import pytest

import minicait
from minicait.models import find_model

PARAMETERS = {  # of the authors' code, 1000 classes
    "deit_tiny_patch16_224": 5_717_416, "deit_small_patch16_224": 22_050_664, "deit_base_patch16_224": 86_567_656,
    "deit_base_patch16_384": 86_859_496, "deit_tiny_distilled_patch16_224": 5_910_800,
    "deit_small_distilled_patch16_224": 22_436_432, "deit_base_distilled_patch16_224": 87_338_192,
    "deit_base_distilled_patch16_384": 87_630_032,
    "deit3_tiny_patch16_224": 5_721_832, "deit3_small_patch16_224": 22_059_496, "deit3_small_patch16_384": 22_205_416,
    "deit3_medium_patch16_224": 38_849_512, "deit3_base_patch16_224": 86_585_320, "deit3_base_patch16_384": 86_877_160,
    "deit3_large_patch16_224": 304_374_760, "deit3_large_patch16_384": 304_763_880,
    "deit3_huge_patch14_224": 632_126_440,
    "resmlp_12_224": 15_350_872, "resmlp_24_224": 30_020_680, "resmlp_36_224": 44_690_488,
    "resmlp_big_24_224": 129_138_280, "resmlp_big_24_patch16_224": 115_736_776, "resmlp_12_patch14_224": 15_607_912,
    "resmlp_12_patch8_224": 22_051_624, "resmlp_12_class_mlp_224": 17_719_396,
    "patchconvnet_s20_224": 10_235_896, "patchconvnet_s36_224": 16_233_976, "patchconvnet_s60_224": 25_231_096,
    "patchconvnet_s60_384": 25_231_096, "patchconvnet_s60_512": 25_231_096, "patchconvnet_b60_384": 99_388_936,
    "patchconvnet_b120_384": 188_611_336, "patchconvnet_l60_384": 176_009_576, "patchconvnet_l120_384": 334_294_376,
    "patchconvnet_s60_multi_224": 25_614_712, "patchconvnet_s120_224": 47_723_896, "patchconvnet_b36_224": 63_699_976,
    "patchconvnet_b60_224": 99_388_936, "patchconvnet_b120_224": 188_611_336, "patchconvnet_l60_224": 176_009_576,
    "patchconvnet_l120_224": 334_294_376,
    "lvvit_t_224": 8_534_720, "lvvit_s_224": 26_151_824, "lvvit_s_384": 26_297_744, "lvvit_m_224": 55_830_544,
    "lvvit_m_384": 56_025_104, "lvvit_m_448": 56_131_600, "lvvit_l_224": 150_021_968, "lvvit_l_288": 150_120_272,
    "lvvit_l_448": 150_473_552, "lvvit_l_512": 150_657_872,
}  # fmt: skip
GFLOPS = {  # Tables 4.3, 5.1, 5.2, 6.7 and 6.14 of the thesis, LV-ViT: the authors' code
    "deit_tiny_patch16_224": 1.3, "deit_small_patch16_224": 4.6, "deit_base_patch16_224": 17.5,
    "deit3_tiny_patch16_224": 1.3, "deit3_small_patch16_224": 4.6, "deit3_small_patch16_384": 15.5,
    "deit3_base_patch16_224": 17.5, "deit3_base_patch16_384": 55.5, "deit3_large_patch16_224": 61.6,
    "deit3_large_patch16_384": 191.2, "deit3_huge_patch14_224": 167.4,
    "resmlp_12_224": 3.0, "resmlp_24_224": 6.0, "resmlp_big_24_patch16_224": 23.0, "resmlp_12_class_mlp_224": 3.0,
    "resmlp_12_patch14_224": 4.0, "resmlp_12_patch8_224": 14.0, "resmlp_big_24_224": 100.2,
    "patchconvnet_s60_224": 4.0, "patchconvnet_s60_384": 11.8, "patchconvnet_s60_512": 20.9,
    "patchconvnet_s120_224": 7.5, "patchconvnet_b60_224": 15.8, "patchconvnet_b60_384": 46.5,
    "patchconvnet_b120_224": 29.9, "patchconvnet_b120_384": 87.7, "patchconvnet_l60_224": 28.1,
    "patchconvnet_l60_384": 82.5, "patchconvnet_l120_224": 53.0, "patchconvnet_l120_384": 155.5,
    "patchconvnet_s60_multi_224": 5.3, "lvvit_t_224": 2.87, "lvvit_s_224": 6.57, "lvvit_m_224": 12.74,
    "lvvit_l_224": 34.78, "lvvit_s_384": 22.17, "lvvit_m_384": 42.16, "lvvit_l_288": 59.04, "lvvit_l_448": 157.0,
}  # fmt: skip
DEIT = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12)}  # Table 3.1: dim, depth, heads
DEIT3 = {**DEIT, "large": (1024, 24, 16), "huge": (1280, 32, 16)}
DROP_RATES = {  # Table 5.8
    "s20": 0.0, "s36": 0.05, "s60": 0.15, "s120": 0.2, "b36": 0.2, "b60": 0.3, "b120": 0.4,
}  # fmt: skip
LVVIT = {"t": (240, 12), "s": (384, 16), "m": (512, 20), "l": (768, 24)}  # Table 8: dim, depth


def config(name):
    return find_model(name)[1]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name):
    assert config(name).cost().parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", GFLOPS)
def test_multiply_adds(name):
    assert abs(config(name).cost().multiply_adds / 1e9 - GFLOPS[name]) < 0.05 + 0.013 * GFLOPS[name]


def test_every_published_size_is_looked_at():
    ours = ("cait_", "grafit_")  # sizes of CaiT are in its own tests, and none of Grafit is published
    others = [name for name in minicait.list_models() if not name.startswith(ours) and "_mini_" not in name]
    unnamed = {n for n in others if n not in PARAMETERS}
    assert not unnamed


@pytest.mark.parametrize("size", DEIT3)
def test_sizes_of_deit_and_deit3(size):
    for name in minicait.list_models(f"deit3_{size}_*") + minicait.list_models(f"deit_{size}_*"):
        c = config(name)
        assert (c.dim, c.depth, c.heads) == DEIT3[size] and c.patch_size == (14 if size == "huge" else 16)
    assert all(config(name).drop_path_rate == 0.1 for name in minicait.list_models(f"deit_{size}_*"))
    assert all(config(name).layer_scale == 1e-4 for name in minicait.list_models(f"deit3_{size}_*"))


@pytest.mark.parametrize("size", DROP_RATES)
def test_drop_rates_of_patchconvnet(size):
    assert {config(name).drop_path_rate for name in minicait.list_models(f"patchconvnet_{size}_*")} == {
        DROP_RATES[size]
    }


@pytest.mark.parametrize("size", LVVIT)
def test_sizes_of_lvvit(size):
    for name in minicait.list_models(f"lvvit_{size}_*"):
        c = config(name)
        assert (c.dim, c.depth, c.mlp_ratio) == (*LVVIT[size], 3.0)
        assert c.residual_factor == {"t": 1, "s": 2, "m": 2, "l": 3}[size]
