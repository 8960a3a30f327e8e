"""Downloads from a local server: ranges, truncation, wrong hashes, redirects, fallbacks, no network."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import save_file

import minicait
from minicait.cli import main
from minicait.files.download import DownloadError, UnreachableError, cache_directory, download
from minicait.files.pretrained import _shapes, get_weights, sources
from minicait.models import find_published, published_models
from minicait.models.cait import CaiT
from tests.attack.pth_files import save_pth
from tests.golden.recipe import FOLDER, MODELS, random_weights
from tests.local_server import local_server
from tests.models.test_family_files import mini, of_timm, same

CONTENT = np.random.default_rng(0).bytes(300_000)
NAME = "cait_xxs24_224"


@pytest.fixture
def server():
    with local_server() as running:
        running.files["/file"] = CONTENT
        yield running


def test_a_file_arrives_whole(server, tmp_path):
    path = download(f"{server.url}/file", tmp_path / "deep/folder/file")
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.fixture
def one_try(monkeypatch):
    monkeypatch.setattr("minicait.files.download.TRIES", 1)


@pytest.mark.usefixtures("one_try")
@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_download_goes_on_where_it_stopped(server, tmp_path, ranges):
    server.cut, server.ranges = 100_000, ranges
    with pytest.raises(DownloadError, match=r"ended early, after 100,000 of 300,000 bytes; run the command again"):
        download(f"{server.url}/file", tmp_path / "file")
    assert not (tmp_path / "file").exists() and (tmp_path / "file.part").stat().st_size == 100_000
    server.cut = None
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT
    assert server.log[-1] == ("/file", "bytes=100000-")


@pytest.mark.parametrize("tagged", [True, False])
@pytest.mark.parametrize("length", [100_000, 300_000, 400_000])
def test_a_part_of_something_else_is_not_continued(server, tmp_path, length, tagged):
    """Left from another version of the file: shorter, as long, or longer."""
    (tmp_path / "file.part").write_bytes(bytes(length))
    if tagged:
        (tmp_path / "file.part.etag").write_text('"of another version"')
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_connections_that_break_are_made_again(server, tmp_path):
    server.cut = 120_000  # of 300,000 bytes
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT
    assert [asked for _, asked in server.log] == [None, "bytes=120000-", "bytes=240000-"]
    server.cut = 0
    server.log.clear()
    with pytest.raises(DownloadError, match="ended early, after 0 of 300,000 bytes"):
        download(f"{server.url}/file", tmp_path / "again")
    assert len(server.log) == 1  # no progress, so no retry


def test_a_complete_part_is_as_good_as_none(server, tmp_path):
    tag = f'"{hashlib.md5(CONTENT).hexdigest()}"'
    (tmp_path / "file.part").write_bytes(CONTENT)
    (tmp_path / "file.part.etag").write_text(tag)
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT


def test_a_complete_part_is_only_checked_where_its_hash_is_known(server, tmp_path):
    """A large download was interrupted while it was being checked."""
    (tmp_path / "file.part").write_bytes(CONTENT)
    good = hashlib.sha256(CONTENT).hexdigest()
    assert download(f"{server.url}/file", tmp_path / "file", good, len(CONTENT)).read_bytes() == CONTENT
    assert not server.log and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_two_processes_do_not_get_into_each_other_s_way(server, tmp_path):
    """Four want the same file: one fetches it, the others wait for it."""
    work = partial(download, f"{server.url}/file", tmp_path / "file")
    with ThreadPoolExecutor(4) as pool:
        paths = [future.result() for future in [pool.submit(work) for _ in range(4)]]
    assert {path.read_bytes() for path in paths} == {CONTENT} and len(server.log) == 1


@pytest.mark.usefixtures("one_try")
def test_without_tags_a_download_starts_anew(server, tmp_path):
    server.tags, server.cut = False, 100_000
    with pytest.raises(DownloadError, match="ended early"):
        download(f"{server.url}/file", tmp_path / "file")
    server.cut = None
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT
    assert server.log[-1] == ("/file", None)


def test_a_wrong_hash_is_refused_and_deleted(server, tmp_path):
    with pytest.raises(DownloadError, match=r"arrived damaged: its size or SHA-256 is wrong"):
        download(f"{server.url}/file", tmp_path / "file", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []
    good = hashlib.sha256(CONTENT).hexdigest()
    assert download(f"{server.url}/file", tmp_path / "file", sha256=good).read_bytes() == CONTENT


def test_the_hash_that_a_hub_announces_is_used(server, tmp_path):
    server.redirects["/hub"] = ("/file", {"X-Linked-Etag": f'"{"1" * 64}"', "X-Linked-Size": str(len(CONTENT))})
    with pytest.raises(DownloadError, match="its size or SHA-256 is wrong"):
        download(f"{server.url}/hub", tmp_path / "file")
    good = hashlib.sha256(CONTENT).hexdigest()
    server.redirects["/hub"] = ("/file", {"X-Linked-Etag": f'"{good}"', "X-Linked-Size": str(len(CONTENT))})
    assert download(f"{server.url}/hub", tmp_path / "file").read_bytes() == CONTENT


def test_a_missing_file_and_a_missing_network(server, tmp_path):
    with pytest.raises(DownloadError, match=r"could not download .*/nothing: Not Found"):
        download(f"{server.url}/nothing", tmp_path / "file")
    server.shutdown()
    server.server_close()
    with pytest.raises(UnreachableError, match=r"could not download .*[Rr]efused"):
        download(f"{server.url}/file", tmp_path / "file")


def test_the_cache_is_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setenv("MINICAIT_CACHE", str(tmp_path / "here"))
    assert cache_directory() == tmp_path / "here"
    monkeypatch.delenv("MINICAIT_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "minicait"


@pytest.fixture
def mirror(server, tmp_path, monkeypatch):
    """Both sources of published weights point to the local server, which has them at timm's path."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("MINICAIT_OFFICIAL", f"{server.url}/official")
    monkeypatch.setenv("MINICAIT_CACHE", str(tmp_path / "cache"))
    model = minicait.create_model(NAME)
    state = {name: value.astype(np.float32) for name, value in random_weights(shapes(model)).items()}
    save_file(state, tmp_path / "made.safetensors")
    server.files[f"/timm/{NAME}.fb_dist_in1k/resolve/main/model.safetensors"] = (
        tmp_path / "made.safetensors"
    ).read_bytes()
    return server


def shapes(model):
    return {name: p.shape for name, p in model.named_parameters()}


def test_published_weights_come_once_and_load(mirror, tmp_path):
    path = get_weights(NAME)
    assert path == tmp_path / f"cache/weights/{NAME}.safetensors"
    model = minicait.create_model(NAME)
    minicait.load_weights(model, path)
    want = random_weights({"head.bias": (1000,)})["head.bias"].astype(np.float32)
    np.testing.assert_array_equal(model.head.bias.numpy(), want)
    asked = len(mirror.log)
    assert get_weights(NAME) == path and len(mirror.log) == asked


@pytest.mark.parametrize("answer", [None, b"<html>please log in</html>"])
def test_the_authors_file_is_the_fallback(mirror, monkeypatch, answer):
    """The hub has nothing, or nonsense; the authors' checkpoint is read as PyTorch wrote it."""
    monkeypatch.setattr("minicait.files.pretrained._shapes", lambda name: shapes(CaiT(**MODELS["deep"])))
    mirror.files = {path: answer for path in mirror.files if answer and path.startswith("/timm")}
    mirror.files["/official/XXS24_224.pth"] = (FOLDER / "deep.pth").read_bytes()
    path = get_weights(NAME)
    assert path.name == f"{NAME}.pth" and path.read_bytes() == mirror.files["/official/XXS24_224.pth"]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_nonsense_from_both_is_not_kept(mirror):
    mirror.files = dict.fromkeys([*mirror.files, "/official/XXS24_224.pth"], b"nonsense")
    with pytest.raises(DownloadError, match=r"is not its weights: .*it was deleted; .*is not its weights"):
        get_weights(NAME)
    assert not list((cache_directory() / "weights").iterdir())


def test_shapes_are_those_of_the_model():
    assert _shapes(NAME) == shapes(minicait.create_model(NAME))


def test_weights_of_another_model_are_not_kept(mirror):
    address = next(path for path in mirror.files if path.startswith("/timm"))
    mirror.files[address.replace("xxs24_224", "xxs36_224")] = mirror.files[address]
    with pytest.raises(DownloadError, match="its tensors are not those of cait_xxs36_224"):
        get_weights("cait_xxs36_224")


# ---- all families


def test_addresses_of_published_weights():
    every = {name: sources(name) for name in published_models()}
    assert len({url for found in every.values() for url, _ in found}) == sum(map(len, every.values()))
    meta = "https://dl.fbaipublicfiles.com/deit"
    releases = "https://github.com/zihangJiang/TokenLabeling/releases/download"
    hub = "https://huggingface.co/timm/{}/resolve/main/model.safetensors"
    for name, official, copy in (
        ("cait_xxs24_224", f"{meta}/XXS24_224.pth", "cait_xxs24_224.fb_dist_in1k"),
        ("deit_tiny_patch16_224", f"{meta}/deit_tiny_patch16_224-a1311bcf.pth", "deit_tiny_patch16_224.fb_in1k"),
        ("deit3_huge_patch14_224.in21k", f"{meta}/deit_3_huge_224_21k_v1.pth",
         "deit3_huge_patch14_224.fb_in22k_ft_in1k"),
        ("resmlp_big_24_224.dist", f"{meta}/resmlpB_24_dist.pth", "resmlp_big_24_224.fb_distilled_in1k"),
        ("patchconvnet_b120_384.in21k", f"{meta}/b120_384_21k.pth", None),
        ("lvvit_s_384", f"{releases}/1.0/lvvit_s-26M-384-84.4.pth.tar", None),
        ("lvvit_t_224", f"{releases}/v0.2.0/lvvit_t.pth", None),
    ):  # fmt: skip
        copies = [(hub.format(copy), f"{name}.safetensors")] if copy else []
        assert every[name] == [*copies, (official, f"{name}.pth")]


SMALL_ONES = {  # published weights, a small model in the place of theirs, where they are, and how they are written
    "deit_tiny_patch16_224": ("deit_mini_32", "/timm/deit_tiny_patch16_224.fb_in1k", None),
    "deit_base_distilled_patch16_384": ("deit_mini_distilled_32",
                                        "/official/deit_base_distilled_patch16_384-d0272ac0.pth",
                                        lambda state: {"model": state}),
    "deit3_small_patch16_224.in21k": ("deit3_mini_32", "/timm/deit3_small_patch16_224.fb_in22k_ft_in1k", None),
    "resmlp_12_224.dist": ("resmlp_mini_32", "/timm/resmlp_12_224.fb_distilled_in1k", None),
    "resmlp_24_224.dino": ("resmlp_mini_32", "/official/resmlp_24_dino.pth", lambda state: state),
    "patchconvnet_s60_384.in21k": ("patchconvnet_mini_32", "/official/s60_384_21k.pth", lambda state: state),
    "patchconvnet_s60_multi_224.finetuned": ("patchconvnet_mini_multi_32", "/official/s60_multi_finetune_1k.pth",
                                             lambda state: {"model": {f"module.{k}": v for k, v in state.items()}}),
    "lvvit_s_224": ("lvvit_mini_32", "/official/lvvit_s-26M-224-83.3.pth.tar", lambda state: {"state_dict": state}),
}  # fmt: skip


@pytest.fixture(params=SMALL_ONES)
def small_one(request, server, tmp_path, monkeypatch):
    """Name and model of published weights that the local server has, which are small."""
    name, (preset, address, layout) = request.param, SMALL_ONES[request.param]
    model, published = mini(preset, img_size=None if preset.startswith("resmlp") else 48), name.partition(".")[0]
    for variable, value in (("HF_ENDPOINT", ""), ("MINICAIT_OFFICIAL", "/official"), ("MINICAIT_CACHE", None)):
        monkeypatch.setenv(variable, str(tmp_path / "cache") if value is None else server.url + value)
    monkeypatch.setitem(find_published(name)[0].presets, published, model.config)
    state, path = dict(model.state_dict()), tmp_path / "made"
    save_file(of_timm(state), path) if layout is None else save_pth(path, layout(state))
    server.files[address if layout else f"{address}/resolve/main/model.safetensors"] = path.read_bytes()
    return name, model


def test_published_weights_of_every_family(small_one, server, tmp_path, capsys):
    name, model = small_one
    built, info = minicait.load_model(name)
    assert same(built, model) and built.config == model.config and info.crop_ratio == model.config.crop_ratio
    asked = [path for path, _ in server.log]
    assert [path in server.files for path in asked] == [False] * (len(asked) - 1) + [True]
    assert [path.stem for path in (tmp_path / "cache/weights").iterdir()] == [name]
    assert minicait.load_model(name, classes=["a", "b"])[0].num_classes == 2 and len(server.log) == len(asked)
    assert main(["weights", "get", name]) == 0
    path, use = capsys.readouterr().out.splitlines()
    assert path == str(get_weights(name)) and use == f"use: model, info = minicait.load_model({name!r})"


def test_weights_of_another_size_are_not_kept_in_any_family(small_one, server, tmp_path, monkeypatch):
    name, model = small_one
    family, _, _ = find_published(name)
    monkeypatch.setitem(family.presets, name.partition(".")[0], model.config.changed(num_classes=8))
    with pytest.raises(DownloadError, match=f"{name} is not its weights: its tensors are not those of {name}"):
        get_weights(name)
    assert not list((tmp_path / "cache/weights").iterdir())


def test_only_published_models_have_published_weights(mirror):
    for name, near in (("cait_tiny_32", "cait_s36_384"), ("resmlp_12_224.dst", "resmlp_12_224.dist"),
                       ("patchconvnet_s60_384", "patchconvnet_s60_224 or patchconvnet_s60_384.in21k")):  # fmt: skip
        with pytest.raises(ValueError, match=f"there are no published weights {name}: did you mean {near}"):
            get_weights(name)
