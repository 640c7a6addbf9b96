"""Errors of a user's environment, in words with a remedy.

Every call into an environment may raise anything: `is_its_own` tells whether it was the environment, and `words_of`
describes the error. `pair_of` and `fault_of_step` check what Gymnasium's `reset` and `step` return.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from trainer.envs import life
from trainer.envs.spec import EnvError

LONGEST = 600  # most characters of an environment's message that are repeated
SHIMMY = (
    "an environment of old gym is played through shimmy: pip install 'shimmy[gym-v26]', env.id=GymV26Environment-v0 "
    "(of gym before 0.26 [gym-v21] and GymV21Environment-v0), env.import_modules=[shimmy], env.kwargs={env_id: its id}"
)
ALONE = (
    "if only one of them can run in a process, set collector.envs_per_worker=1, evaluator.num_envs=1 and "
    "collector.num_workers to how many there shall be"
)
DETACH = ": return reward.item()"  # a tensor that torch does not hand to NumPy
# Pattern of a message -> what the user can do.
REMEDIES = {
    r"unexpected keyword argument '(seed|options)'": f"its reset must take seed=None and options=None; {SHIMMY}",
    r"unpack \(expected 5": f"its step must give five values; {SHIMMY}",
    r"unpack \(expected 2": f"its reset must give (observation, info); {SHIMMY}",
    r"(unexpected keyword argument|takes no arguments).*render_mode": (
        "its constructor takes no render_mode: it has no pictures"
    ),
    r"\bdisplay\b|\bx11\b|xlib|glfw|no available video device|\begl\b|osmesa|opengl|libgl|pyglet": (
        "where there is no display, put `xvfb-run -a` before the command (for MuJoCo's pictures set MUJOCO_GL=egl or "
        "osmesa)"
    ),
    r"already (in use|running|exists|initiali[sz]ed|been)|only one|once per process|singleton|another instance": ALONE,
}


class Unfit(ValueError):
    """An environment returned something that it must not return; the text says what."""


def is_its_own(error: BaseException) -> bool:
    """Whether the environment raised an error itself: not Ctrl-C, and not a signal handler of the trainer.

    An error in a process that the environment forked ends that process here.
    """
    life.leave_if_forked()
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    return isinstance(error, Exception) or not type(error).__module__.startswith("trainer.")


def one_line(error: BaseException | str) -> str:
    """A message of an environment as one line of valid UTF-8, without characters that steer a terminal."""
    try:
        text = " ".join(str(error).split()).encode("utf-8", "replace").decode()
        text = "".join(character if character.isprintable() else "?" for character in text)
    except Exception as unreadable:  # its __str__ may raise anything
        text = f"its text is not readable: {type(unreadable).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def words_of(error: BaseException) -> str:
    """Describe an exception of an environment: its type, its text, and a remedy if one is known."""
    if isinstance(error, Unfit):
        return str(error)
    text = f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")
    for pattern, remedy in REMEDIES.items():
        if re.search(pattern, text, re.IGNORECASE):
            return f"{text}; {remedy}"
    return text


def warn(text: str) -> None:
    """Print a warning; what a child process prints goes into the run folder, and an event tells of it."""
    print(f"warning: {text}", file=sys.stderr, flush=True)  # not by `warnings`, as libraries filter those away


def is_looked_at(vector_step: int) -> bool:
    """Whether all values of a step are checked: in the first 64 steps of a vector, then in every 256th."""
    return vector_step <= 64 or vector_step % 256 == 0


def pair_of(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """Observation and info, from what `reset` returned; an info of None becomes an empty dict.

    Raises:
        Unfit: it returned something else.
    """
    if type(result) is tuple and len(result) == 2 and type(result[1]) is dict:
        return result  # the usual case; the code below takes five times as long
    pair = isinstance(result, tuple | list) and len(result) == 2
    if pair and (result[1] is None or isinstance(result[1], Mapping)):
        return result[0], result[1] if result[1] is not None else {}
    raise Unfit(
        f"it gave {_kind(result)}, and must give (observation, info) with info a dict; where reset gives the "
        f"observation alone, {SHIMMY}"
    )


def fault_of_step(result: Any) -> str | None:
    """What is wrong with the values that `step` returned, the observation aside; None if nothing is."""
    if not isinstance(result, tuple | list) or len(result) != 5:
        old = f"; {SHIMMY}" if isinstance(result, tuple | list) and len(result) == 4 else ""
        return (
            f"it gave {_kind(result)}, and must give the five values (observation, reward, terminated, truncated, info)"
            f"{old}"
        )
    _, reward, terminated, truncated, info = result
    if (fault := _fault_of_reward(reward)) is not None:
        return fault
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_) and not (np.ndim(flag) == 0 and flag in (0, 1)):
            return f"its {name} is {_kind(flag)}, and must be True or False"
    if info is not None and not isinstance(info, Mapping):
        return f"its info is {_kind(info)}, and must be a dict"
    return None


def of_rewards(rewards: Any, error: BaseException) -> BaseException:
    """An error about the first wrong reward among those of several agents; `error` itself if all are right."""
    for name, reward in rewards.items() if isinstance(rewards, dict) else ():
        if (
            isinstance(error, TypeError | ValueError | OverflowError)
            and (fault := _fault_of_reward(reward)) is not None
        ):
            return Unfit(f"of {name}, {fault}")
    return error


def _fault_of_reward(reward: Any) -> str | None:
    no_number = f"its reward is {_kind(reward)}, and must be one number"
    try:
        array = np.asarray(reward)
    except Exception:  # parts of different lengths; a tensor with a gradient
        return f"{no_number}{DETACH if hasattr(reward, 'detach') else ''}"
    if array.dtype.kind not in "biuf" and (isinstance(reward, np.generic) or not isinstance(reward, Real | Decimal)):
        return no_number
    if array.ndim == 0:
        try:
            with np.errstate(all="ignore"):
                finite = isinstance(reward, int) or np.isfinite(np.float32(float(reward)))
        except Exception:  # Decimal's signaling NaN
            return no_number
        return None if finite else f"its reward is {reward}, which is no finite number of float32"
    if array.size == 1:
        return (
            f"its reward is {_kind(reward)}, and must be one number: wrap it by gymnasium.wrappers.TransformReward("
            "env, lambda reward: float(reward[0]))"
        )
    return (
        f"its reward is {_kind(reward)}, and must be one number: weigh its parts by mo_gymnasium.wrappers.LinearReward "
        "or gymnasium.wrappers.TransformReward(env, lambda reward: float(sum(reward))), or, where they are several "
        "agents', make it a PettingZoo environment (env.backend=pettingzoo)"
    )


def refuse(env_id: str, doing: str, error: BaseException) -> EnvError:
    """The error to raise for an environment that is not part of a vector yet."""
    return EnvError(f"{env_id}: {doing} failed: {words_of(error)}")


def _kind(value: Any) -> str:
    """A value in a few words: its type, with its shape or its text."""
    name = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple | list | dict | set):
        return f"a {name} of {len(value)}"
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return f"{one_line(repr(value))[:80]} ({name})" if value is not None else "None"
    return f"a {name}"
