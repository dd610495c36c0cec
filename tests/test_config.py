import re
from pathlib import Path

import pytest
import yaml

from flexpredict import config
from flexpredict.config import Settings


def _all_recipes() -> list[str]:
    names = []
    for recipe in config.recipe_names():
        names += [recipe, *(f"{recipe}@{variant}" for variant in config.recipe_variants(recipe))]
    return names


@pytest.mark.parametrize("name", _all_recipes())
def test_recipes__are_valid_settings(name: str) -> None:
    config.settings_from({}, recipe=name)


@pytest.mark.parametrize("name", config.recipe_names())
def test_recipes__open_with_their_command(name: str) -> None:
    header = [line for line in config.recipe_text(name).splitlines() if line.startswith("#")]
    assert any(f"--recipe {name}" in line or f"flexpredict {name}" in line for line in header)
    assert any("Hardware" in line for line in header)


def test_recipes__every_row_of_the_ablations_is_there() -> None:
    variants = set(config.recipe_variants("paper/ablation-vit-b16"))
    assert {"table6-sincos", "table6-learned", "table6-stop"} <= variants
    assert {"table7-none", "table7-context", "table7-both", "table7-masked"} <= variants
    assert {"table8-bilinear", "table8-max"} <= variants
    for std in ("0.1", "0.25", "0.6"):
        assert {f"figure3-learned-{std}", f"figure3-fixed-{std}", f"figure4-{std}"} <= variants


def test_settings__last_word_wins() -> None:
    settings = config.settings_from({"lr": 5e-4}, recipe="paper/ablation-vit-b16@table7-context")
    assert settings.lr == 5e-4
    assert settings.noise_on == "context"
    assert settings.epochs == 300
    assert settings.model == "vit_base"


def test_settings__epochs_unset_steps_and_the_other_way_round() -> None:
    assert config.settings_from({"steps": 10}).epochs is None
    both = config.settings_from({"epochs": 2}, recipe="demo")
    assert both.steps is None
    with pytest.raises(ValueError, match="either epochs or steps"):
        config.settings_from({"epochs": 1, "steps": 10})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"noise_sdt": 0.1}, "there is no setting 'noise_sdt': did you mean noise_std?"),
        ({"batch_size": "many"}, "batch_size='many' does not fit"),
        ({"batch_size": 0}, "batch_size=0 does not fit"),
        ({"positions": "random"}, "positions='random' does not fit"),
        ({"lr": float("nan")}, "lr=nan does not fit"),
        ({"batch_size": 10, "accumulate": 3}, "does not divide into accumulate=3"),
        ({"mask_ratio": 0.5}, "mask_ratio is a setting of masking=random, not of even"),
        ({"min_context": 4}, "min_context is a setting of masking=paper, not of even"),
        ({"noise_rank": 8}, "noise_rank is a setting of positions=low-rank, not of stop"),
        ({"positions": "fixed", "noise_std_final": 0.1}, "a setting of positions=annealed, not of"),
    ],
)
def test_settings__wrong_values_get_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        config.settings_from(values)
    assert "\n" not in str(caught.value)


def test_recipes__unknown_names_get_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean paper/stop-vit-b16"):
        config.settings_from({}, recipe="paper/stop-vitb16")
    with pytest.raises(ValueError, match="has no variant 'tabel7'"):
        config.settings_from({}, recipe="paper/ablation-vit-b16@tabel7")
    with pytest.raises(ValueError, match="no such file"):
        config.settings_from({}, recipe=str(tmp_path / "mine.yaml"))


def test_recipes__own_file_with_a_base(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: small/stop-vit-t8-64\nlr: 1e-4\n")
    settings = config.settings_from({}, recipe=str(path))
    assert (settings.lr, settings.model) == (1e-4, "vit_tiny")
    path.write_text("- a list\n")
    with pytest.raises(ValueError, match="expected lines of `name: value`"):
        config.settings_from({}, recipe=str(path))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"base: 3", "base is 3, expected the name of a recipe"),
        (b"base: {path}", "is a base of itself"),
        (b"variants: [1, 2]", "expected variants as lines of"),
        (b"variants: {x: 3}", "expected variants as lines of"),
        (b"model: \xff\xfe", "must be UTF-8"),
    ],
)
def test_recipes__that_are_none_get_one_sentence(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(content.replace(b"{path}", str(path).encode()))
    with pytest.raises(ValueError, match=sentence) as caught:
        config.read_recipe(str(path))
    assert "own.yaml" in str(caught.value)


def test_overrides__values_are_yaml() -> None:
    values = config.parse_overrides(["lr=1e-3", "image_size=[96,64]", "tied=false", "steps=null"])
    settings = config.settings_from(values)
    assert (settings.lr, settings.image_size, settings.tied) == (1e-3, (96, 64), False)
    with pytest.raises(ValueError, match="key=value, not 'lr'"):
        config.parse_overrides(["lr"])


def test_settings__survive_their_file(tmp_path: Path) -> None:
    settings = config.settings_from({"image_size": (96, 64)}, recipe="paper/stop-vit-h14")
    path = tmp_path / "config.yaml"
    path.write_text(settings.to_yaml())
    assert config.read_settings(path) == settings


def test_settings__of_a_broken_file_get_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for content, sentence in {
        b"": "is empty", b"lr: [1": "is not readable as YAML: .*, line 1$",
        b"lr: 1\nema: 0.9\nlr: 2": "'lr' stands there twice, line 3$",
        "lr: 1 # \u00fc".encode("latin-1"): "must be UTF-8",
    }.items():  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(ValueError, match=sentence) as caught:
            config.read_settings(path)
        assert "\n" not in str(caught.value)


def test_settings__a_folder_called_like_a_number(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for data in ("2024", "1e3", "nan"):
        settings = config.settings_from({"data": data})
        path.write_text(settings.to_yaml())
        assert config.read_settings(path).data == data
    for name in ("2024", "2024_11_15", "0123", "on", "1e3"):
        assert config.settings_from(config.parse_overrides([f"data={name}"])).data == name
    assert config.parse_overrides(["data=null", "init='x'"]) == {"data": None, "init": "x"}


def test_settings__mae_has_random_masks_and_no_settings_of_ijepa() -> None:
    assert config.settings_from({"objective": "mae"}).masking == "random"
    assert config.settings_from({"objective": "mae", "masking": "even"}).masking == "even"
    with pytest.raises(ValueError, match="target_layers is a setting of objective=ijepa"):
        config.settings_from({"objective": "mae", "target_layers": 2})
    over = config.settings_from({"objective": "mae"}, recipe="small/stop-vit-s8-64")
    assert (over.masking, over.target_layers, over.batch_size) == ("random", 1, 256)


def test_digest__says_what_changes_results() -> None:
    plain = config.settings_from({})
    assert config.settings_from({"workers": 3, "log_every": 7}).digest() == plain.digest()
    assert config.settings_from({"noise_std": 0.26}).digest() != plain.digest()
    annealed = [{"positions": "annealed", "noise_std_final": final} for final in (0.0, 0.1)]
    assert len({config.settings_from(values).digest() for values in annealed}) == 2


def test_digest__of_old_runs_stays() -> None:
    """Studies know their finished runs by it."""
    assert config.settings_from({"positions": "fixed"}).digest() == "6e5aa0686153"


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop_scale": (2, 3)},
        {"crop_scale": (-1, 0)},
        {"seed": 2**70},
        {"hold": "yes"},
        {"betas": (1, 1)},
        {"std": (0, 1, 1)},
    ],
)
def test_settings__outside_their_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        config.settings_from(wrong)


def test_overrides__hold_can_be_turned_off() -> None:
    assert config.settings_from(config.parse_overrides(["hold=none"])).hold == "none"


def test_docs__list_every_setting_with_its_default() -> None:
    text = (Path(__file__).parents[1] / "docs" / "settings.md").read_text()
    found: dict[str, str] = {}
    for row in re.findall(r"^\| (`.*?`) \| (`.*?`) \|", text, re.MULTILINE):
        names, defaults = (re.findall(r"`([^`]+)`", cell) for cell in row)
        assert len(defaults) in (1, len(names)), names
        found |= dict(zip(names, defaults * (len(names) if len(defaults) == 1 else 1), strict=True))
    assert list(found) == list(dict.fromkeys(found))
    assert found.keys() == Settings.model_fields.keys()
    for name, default in found.items():
        value = Settings.model_fields[name].default
        shown = list(value) if isinstance(value, tuple) else value
        assert yaml.safe_load(default) == shown or float(default) == shown, name
