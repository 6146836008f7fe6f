"""The settings that are tried: which are equal, and which are refused."""

from __future__ import annotations

import tomllib

import pytest

from sentinel.backtest.variants import CURRENT, MAX_VARIANTS, make_variants
from sentinel.config.config_sources import ConfigError
from sentinel.config.toml_text import toml_text

LIMIT, SURE = "detectors.kl_blowup.limit", "detectors.kl_blowup.sure"


def names(*, sets=(), grid=()):
    return [each.name for each in make_variants(sets, grid, {})]


def test_each_combination_of_the_grid_has_the_set_values_too():
    assert names(sets=["disable=loss_spike"], grid=[f"{LIMIT}=2,3", f"{SURE}=6, 9"]) == [
        CURRENT,
        "disable=loss_spike",
        *(
            f"disable=loss_spike, {LIMIT}={limit}, {SURE}={sure}"
            for limit in (2, 3)
            for sure in (6, 9)
        ),
    ]


def test_settings_that_are_equal_for_a_replay_are_tried_once():
    # 1 is the default.
    assert names(grid=[f"{LIMIT}=1,1.0,2,2.0"]) == [CURRENT, f"{LIMIT}=2"]


def test_lists_and_texts_in_quotes_are_one_value():
    grid = ['disable=["kl_blowup","loss_spike"],[],"kl_blowup"']
    disabled = [each.settings.disable for each in make_variants((), grid, {})]

    assert disabled == [[], ["kl_blowup", "loss_spike"], ["kl_blowup"]]


def test_the_toml_gives_the_same_settings():
    for variant in make_variants(["keys.kl/x=kl_ref", "disable=loss_spike"], [f"{LIMIT}=2"], {}):
        assert tomllib.loads(variant.toml) == variant.tree


def test_they_name_the_file_in_which_they_belong_and_what_they_replace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sets = [f"{LIMIT}=2", f"{SURE}=7", "disable=loss_spike"]
    environ = {"SENTINEL_DISABLE": "kl_blowup"}
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (alone,) = make_variants(sets, (), {})[1:]
    project = tmp_path / "pyproject.toml"
    project.write_text("[tool.sentinel.detectors.kl_blowup]\nlimit = 0.5\nratio = 4.0\n")
    (in_project,) = make_variants(sets, (), environ)[1:]
    settings = tmp_path / "sentinel.toml"
    settings.write_text("")
    (beside,) = make_variants(sets, (), environ)[1:]

    assert (alone.file, alone.replaced) == (settings, ())
    assert in_project.file == project
    assert in_project.replaced == (f"{LIMIT} ({project})", "disable (SENTINEL_DISABLE)")
    assert tomllib.loads(in_project.toml) == {"tool": {"sentinel": in_project.tree}}
    assert (beside.file, beside.toml) == (settings, alone.toml)


def test_texts_of_any_characters_are_written_as_toml():
    tree = {"a b": {"c": ['quote " and \\', "line\nend", "π 🙂"], "d": True}, "e": 1.5}

    assert tomllib.loads(toml_text(tree)) == tree


@pytest.mark.parametrize(
    ("sets", "grid", "expected"),
    [
        ([], ["detectors.kl_blowup.limt=1,2"], r'limt" \(--grid\) is not known. Did you mean "lim'),
        (["detectors.kl_blowp.limit=1"], [], r'Did you mean "kl_blowup"'),
        ([], [f"{LIMIT}=1,x"], r"\(--grid\): the string given is wrong"),
        ([f"{LIMIT}=x"], [], r"\(--set\): the string given is wrong"),
        ([], [LIMIT], "give KEY=a,b,c"),
        ([], [f"{LIMIT}= ,"], "give KEY=a,b,c"),
        (["port=1"], [], "does not change what a replay finds"),
        ([], ["port=1,2"], "does not change what a replay finds"),
        ([], [f"{LIMIT}={','.join(map(str, range(1, MAX_VARIANTS + 2)))}"], "are too many"),
    ],
)
def test_an_invalid_option_is_refused(sets, grid, expected):
    with pytest.raises(ConfigError, match=expected):
        make_variants(sets, grid, {})
