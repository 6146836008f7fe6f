"""Which keys of a run stand for signals although the catalogue does not have them.

The settings name some; the words of a key name others. Of several keys that name one signal, one is
chosen, and only if the run logs no key of the catalogue for that signal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from sentinel.signals.catalogue import SIGNALS, normalize_key
from sentinel.signals.key_map import KeyMap, KeyMapping, displaced_mapping
from sentinel.signals.key_words import COMPONENT, InferredSignal, infer_signal, nearest_signal

SETTLING_RECORDS = 8
"""Records after which a signal keeps the key that was chosen for it by its words."""

COMPONENT_RECORDS = 4
"""Records without a total after which a component of the loss stands for it."""

MAX_KEYS = 1024
"""Keys of a run that are examined; the first ones seen."""

_POLICY_SIGNALS = frozenset({
    "reward", "reward_total", "policy_loss", "value_loss", "kl_old", "kl_coef", "advantage_mean",
    "completion_length", "clip_fraction", "explained_variance", "entropy_coef", "eval_reward",
})  # fmt: skip
"""Signals that only the training of a policy has."""

_POLICY_ONLY_SIGNALS = frozenset({"kl_ref", "kl_old", "entropy"})
"""Signals that are taken from a key's words only in the training of a policy: the KL of a VAE grows
while it learns."""

_PLAIN_KL_KEYS = frozenset({"kl", "kl_loss", "kl_divergence", "mean_kl"})
"""Keys of the KL to a reference under which a VAE logs the KL to its prior, which grows as it
learns."""

_TEXT_SIGNALS = frozenset({
    "completion_length", "completion_length_max", "truncated_fraction", "reward_total", "kl_coef",
})  # fmt: skip
"""Signals that only the training of a language model's policy has, which has a reference."""

_EPISODE_PATTERN = re.compile(r"episod|epsilon|(^|[^a-z])ep([^a-z]|$)", re.IGNORECASE)
_EPISODE_REWARD_PATTERN = re.compile(
    r"(.*/)?(ep_?rew_?mean|episode_reward(_mean)?|episodic_return|mean_100ep_reward)", re.IGNORECASE
)
_ACTION_ENTROPY_KEYS = frozenset({"entropy_loss", "losses/entropy"})
"""Keys of stable-baselines3 and CleanRL for the entropy of a distribution of actions."""
_REFERENCE_PATTERN = re.compile(r"ref", re.IGNORECASE)
_DETECTION_PATTERN = re.compile(r"(.*[/_ ])?(box|obj|cls|dfl|iou)", re.IGNORECASE)
_DETECTION_TOTAL_PATTERN = re.compile(r"(.*[/_ ])?total", re.IGNORECASE)
_AUTOENCODER_PATTERN = re.compile(r"recon|elbo|(^|[^a-z])(vae|kld)([^a-z]|$)", re.IGNORECASE)
_WORLD_MODEL_PATTERN = re.compile(
    r"rssm|(^|[^a-z])((image|dyn|cont)_loss|prior_ent)", re.IGNORECASE
)
"""Keys of the training of a world model, whose KL is one of a posterior to a prior."""
_HELD_OUT_SET_PATTERN = re.compile(r"eval_(.+)_runtime")
"""Key of the time that the Trainer of transformers takes for one of several evaluation sets."""
_OF_HELD_OUT_SET = ("loss", "accuracy")
"""What the evaluation of a set is judged by."""
_SCORE_RANK = 4
"""Rank from which a reward is called a score, which is any metric outside of games."""

_Candidate = tuple[InferredSignal, str]


def is_game(names: Iterable[str]) -> bool:
    """Whether values of these names are of a game or control task: of episodes, and of no texts.

    >>> is_game(["reward", "epsilon"]), is_game(["reward", "episode", "completion_length"])
    (True, False)
    """
    known = {*names}
    is_text = not known.isdisjoint(_TEXT_SIGNALS | {"kl_ref", "frac_zero_std"})
    return not is_text and any(map(_EPISODE_PATTERN.search, known))


@lru_cache
def is_action_entropy(entropy_key: str, reward_key: str) -> bool:
    """Whether an entropy is that of a policy of a control task, by the keys that are logged."""
    return normalize_key(entropy_key) in _ACTION_ENTROPY_KEYS or bool(
        _EPISODE_REWARD_PATTERN.fullmatch(reward_key)
    )


@dataclass(slots=True)
class KeyAssignment:
    """Assigns keys of a run to signals; `assigned` is the result.

    `configured` holds the keys of the settings, normalized, with their signals. `counts` is how
    often each key was seen in the first SETTLING_RECORDS records, and 0 for later keys. An exact
    key that comes later takes its signal back.
    """

    configured: dict[str, str] = field(default_factory=dict)
    assigned: dict[str, KeyMapping] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    record_count: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether only keys that were not seen yet can change the assignment."""
        return self.record_count >= SETTLING_RECORDS

    def observe(self, keys: Iterable[str], key_map: KeyMap) -> bool:
        """Take note of the keys of a record; whether the assignment changed."""
        is_settling = not self.is_settled
        if not is_settling and (len(self.counts) >= MAX_KEYS or self.counts.keys() >= {*keys}):
            return False
        known = len(self.counts)
        for key in keys:
            if key in self.counts or len(self.counts) < MAX_KEYS:
                self.counts[key] = self.counts.get(key, 0) + is_settling
        self.record_count += is_settling
        is_due = is_settling and self.record_count in (COMPONENT_RECORDS, SETTLING_RECORDS)
        if len(self.counts) == known and not is_due:
            return False
        previous, self.assigned = self.assigned, self._assign(key_map)
        return previous != self.assigned

    def _assign(self, key_map: KeyMap) -> dict[str, KeyMapping]:
        assigned, exact, candidates = self._classify(key_map)
        self._drop_scores(candidates, exact)
        signals = exact | candidates.keys()
        is_policy = not signals.isdisjoint(_POLICY_SIGNALS)
        is_text = not signals.isdisjoint(_TEXT_SIGNALS)
        is_autoencoder = not is_policy and any(map(_AUTOENCODER_PATTERN.search, self.counts))
        if is_autoencoder or any(map(_WORLD_MODEL_PATTERN.search, self.counts)):
            assigned |= self._kl_to_prior()
        for named in candidates.values():
            inferred, key = self._choose(named)
            name = inferred.name
            is_early = inferred.rank == COMPONENT and self.record_count < COMPONENT_RECORDS
            if is_early or (name in _POLICY_ONLY_SIGNALS and not is_policy):
                continue
            if name == "kl_ref" and not is_text and not _REFERENCE_PATTERN.search(key):
                # Without a reference, the divergence is that of one update.
                name = "kl_old" if "kl_old" not in candidates else ""
            if name and name not in exact:
                assigned[key] = KeyMapping(name, inferred.factor)
        assigned |= self._of_first_held_out_set(signals)
        if is_policy and self.is_settled and signals.isdisjoint({"reward", "eval_reward"}):
            assigned |= self._only_reward(key_map)
        if self.is_settled and signals.isdisjoint({"reward", "loss"}):
            assigned |= self._reward_of_evaluations(key_map, candidates.get("eval_reward", []))
        return assigned

    def _of_first_held_out_set(self, signals: set[str]) -> dict[str, KeyMapping]:
        """The first of several evaluation sets, whose names are in the keys, stands for all."""
        sets = (match[1] for key in self.counts if (match := _HELD_OUT_SET_PATTERN.fullmatch(key)))
        first = next(sets, None)
        if first is None or "eval_loss" in signals:
            return {}
        names = (name for name in _OF_HELD_OUT_SET if f"eval_{name}" not in signals)
        keys = {f"eval_{first}_{name}": KeyMapping(f"eval_{name}") for name in names}
        return {key: mapping for key, mapping in keys.items() if key in self.counts}

    def _only_reward(self, key_map: KeyMap) -> dict[str, KeyMapping]:
        """The one key whose text names a reward, in whatever words: a policy is trained by one."""
        names = [key for key in self.counts if nearest_signal(key) == "reward"]
        is_one = len(names) == 1 and key_map.lookup(names[0]).name == names[0]
        return {names[0]: KeyMapping("reward")} if is_one else {}

    def _kl_to_prior(self) -> dict[str, KeyMapping]:
        """The KL of an autoencoder, which has no reference: only its own name."""
        plain = (key for key in self.counts if normalize_key(key) in _PLAIN_KL_KEYS)
        return {
            key: displaced_mapping(key)
            for key in plain
            if normalize_key(key) not in self.configured
        }

    def _reward_of_evaluations(
        self, key_map: KeyMap, named: list[_Candidate]
    ) -> dict[str, KeyMapping]:
        """The reward of evaluations stands for the reward of a run that logs no other outcome."""
        exact = (key for key in self.counts if key_map.lookup(key).name == "eval_reward")
        key = next(exact, None) or (self._choose(named)[1] if named else None)
        return {} if key is None else {key: KeyMapping("reward")}

    def _classify(
        self, key_map: KeyMap
    ) -> tuple[dict[str, KeyMapping], set[str], dict[str, list[_Candidate]]]:
        """The configured keys, the signals of known keys, and the other keys by their signal."""
        configured: dict[str, KeyMapping] = {}
        exact: set[str] = set()
        candidates: dict[str, list[_Candidate]] = {}
        detection = {key for key in self.counts if _DETECTION_PATTERN.fullmatch(key)}
        if detection:
            detection |= {key for key in self.counts if _DETECTION_TOTAL_PATTERN.fullmatch(key)}
        for key in self.counts:
            name = self.configured.get(normalize_key(key), "")
            if name:
                configured[key] = KeyMapping(name)
            name = name or key_map.lookup(key).name
            if _is_signal(name):
                exact.add(name)
                continue
            if normalize_key(key) in key_map.overrides:
                continue  # its framework gives it a meaning that is no signal
            # Object detectors print the parts of the loss by their bare names.
            text = f"{key}_loss" if key in detection and len(detection) > 1 else key
            inferred = infer_signal(text)
            if inferred is not None:
                candidates.setdefault(inferred.name, []).append((inferred, key))
        return configured, exact, candidates

    def _drop_scores(self, candidates: dict[str, list[_Candidate]], exact: set[str]) -> None:
        """Leave out scores in a run that has a loss and is no game: there a score is any metric."""
        others = exact.union(candidates) - {"reward", "eval_reward"}
        is_game = not others.isdisjoint(_POLICY_SIGNALS) or any(
            map(_EPISODE_PATTERN.search, self.counts)
        )
        if is_game or others.isdisjoint({"loss", "eval_loss"}):
            return
        for name in ("reward", "eval_reward"):
            kept = [each for each in candidates.pop(name, ()) if each[0].rank < _SCORE_RANK]
            if kept:
                candidates[name] = kept

    def _choose(self, named: list[_Candidate]) -> _Candidate:
        """The best of the keys that name one signal; a part of the loss only if no other does."""
        totals = [each for each in named if each[0].rank < COMPONENT]
        named = totals or named
        if self.record_count >= SETTLING_RECORDS:
            kept = [each for each in named if each[1] in self.assigned]
            if kept and self.counts[kept[0][1]] * 2 >= max(self.counts[key] for _, key in named):
                return kept[0]
        most = max(self.counts[key] for _, key in named)
        frequent = [each for each in named if self.counts[each[1]] * 2 >= most]
        return min(frequent, key=lambda each: (each[0].rank, each[1]))


def _is_signal(name: str) -> bool:
    return name in SIGNALS or (name.startswith("eval_") and name[5:] in SIGNALS)
