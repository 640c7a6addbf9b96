"""Write what sub-environments show into arrays: observations and action masks, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.envs import masks
from trainer.envs.episodes import Episodes
from trainer.envs.faults import Unfit, is_its_own, words_of
from trainer.envs.spaces import Field
from trainer.envs.spec import EnvSpec
from trainer.envs.writing import allocate, fault_of, outside, row_writer


class ObservationWriter:
    """The observation of N sub-environments as arrays, which every `write` overwrites.

    Args:
        spec: observations and actions.
        fields: the leaves, and `action_mask` if the environment's observation has it.
        mask_key: name of the mask in `info`.
        mask_methods: that give the masks, one for each sub-environment; none: `info` or the observation has them.
        episodes: of the sub-environments, with what they gave last.

    Attributes:
        observation: arrays [N, *leaf.shape] by leaf, and `action_mask`, bool [N, num_actions].
        mask: the array `action_mask`; None if there is no mask.
        mask_before: the mask of the write before.
    """

    def __init__(
        self, spec: EnvSpec, fields: Sequence[Field], mask_key: str, mask_methods: Sequence[Callable[[], Any]],
        episodes: Episodes,
    ) -> None:  # fmt: skip
        num_envs = len(episodes.rows)
        self._spec, self._fields, self._episodes = spec, fields, episodes
        self.observation = allocate(fields, num_envs)
        self._writers = [row_writer(field, self.observation[field.leaf.name]) for field in fields]
        self._mask_key, self._mask_methods = mask_key, mask_methods
        self._mask_field = [field for field in fields if field.leaf.name == "action_mask"]
        self.mask: NDArray[np.bool_] | None = None
        if spec.action.has_mask:
            shape = (num_envs, spec.num_actions)
            self.mask = self.observation.setdefault("action_mask", np.ones(shape, bool))
            self.mask_before = np.ones(shape, bool)

    def write(self, closely: bool = True) -> None:
        """Write what the sub-environments gave last.

        Args:
            closely: whether every value is looked at, which takes longer.

        Raises:
            EnvError: an observation or a mask is not as declared; the sentence says whose.
        """
        episodes, rows = self._episodes, self._episodes.rows
        if self.mask is not None:
            np.copyto(self.mask_before, self.mask)
        try:
            for write in self._writers:
                write(rows)
        except Exception as error:
            faults = [(index, fault_of(self._fields, row)) for index, row in enumerate(rows)]
            index, fault = next(((i, f) for i, f in faults if f is not None), (0, words_of(error)))
            raise episodes.failure(index, "step", fault) from error
        if self.mask is not None:
            if not self._mask_field:
                self._read_masks(self.mask, closely)
            stuck = masks.complete(self.mask, self.mask_before, episodes.terminated, episodes.truncated)
            if stuck is not None:
                episodes.warn_of(stuck, "mask", masks.NOTHING_LEGAL)
        if closely:
            self._look_closely()

    def _read_masks(self, out: NDArray[np.bool_], closely: bool) -> None:
        key, methods, episodes = self._mask_key, self._mask_methods, self._episodes
        for index, info in enumerate(episodes.infos):
            over = episodes.over[index]
            if over and episodes.terminated[index]:
                out[index] = True  # no action is chosen there, and no value bootstrapped from
                continue
            try:
                mask = methods[index]() if methods else info.get(key) if info else None
                if mask is not None or not over:  # else the mask of the step before stays
                    masks.take(mask, out[index], "action_masks()" if methods else f"info[{key!r}]", closely)
            except BaseException as error:
                if not is_its_own(error):
                    raise
                raise episodes.failure(index, "step", words_of(error)) from error

    def _look_closely(self) -> None:
        """Warn, once for each, of what the environment may mean in another way."""
        episodes, key = self._episodes, self._mask_key
        for field in self._fields:
            if (told := outside(field, self.observation[field.leaf.name])) is not None:
                episodes.warn_of(told[0], field.leaf.name, told[1])
        for index, row in enumerate(episodes.rows if self._mask_field else []):
            if (fault := fault_of(self._mask_field, row)) is not None:
                raise episodes.failure(index, "step", fault) from Unfit(fault)
        if self.mask is not None:
            return
        for index, info in enumerate(episodes.infos):
            if info and key in info:
                words = f"info[{key!r}] came with a step and not with reset: give it with both"
                raise episodes.failure(index, "step", words)
            for like in masks.look_alikes(info or {}, self._spec.action):
                episodes.warn(like, like)
