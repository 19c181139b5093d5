"""Lets files with objects of ours load where hvd_keras is not installed.

Keras saves an object as a dict: its class and its config. For a class of ours
that becomes an object of Keras's own which does the same in one process. The
dict of the object itself stands beside it, under a key that Keras does not
read. Where hvd_keras has been imported, Keras loads that one.

| Name | Used to |
|---|---|
| `serialization_lib.serialize_keras_object` | save both |
| `serialization_lib.deserialize_keras_object` | load the object itself |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras._common.replacements import replace
from hvd_keras._keras.lookup import private_module, require

_serialization = private_module("saving.serialization_lib")
_KEY = "hvd_keras"

Config = dict[str, Any]
# From an object and its config: what to change in the dict that is saved.
Form = Callable[[Any, Config], Config]

_forms: dict[type, Form] = {}


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(_serialization, "serialize_keras_object", ["obj"])
    require(_serialization, "deserialize_keras_object")


def save_as(kind: type, form: Form) -> None:
    """Makes Keras save objects of `kind`, and of subclasses, in another form.

    Args:
        kind: The class.
        form: Says how. An empty dict: as Keras does.
    """
    _forms[kind] = form


def saved_as(cls: type, config: Config) -> Config:
    """Returns what Keras saves of an object of a class of its own."""
    form: Config = _serialization.serialize_with_public_class(cls, config)
    return form


def plain_form_of(obj: Any) -> Config:
    """Returns what loads without hvd_keras, and nothing else."""
    form: Config = _serialization.serialize_keras_object(obj)
    form.pop(_KEY, None)
    return form


def install() -> None:
    """Makes Keras save and load so. A second call does nothing."""
    replace(_serialization, "serialize_keras_object", _saving_both)
    replace(_serialization, "deserialize_keras_object", _loading_ours)


def _saving_both(original: Callable[[Any], Any]) -> Any:
    def serialize_keras_object(obj: Any) -> Any:
        saved = original(obj)
        kinds = (_forms.get(cls) for cls in type(obj).__mro__)
        form = next(filter(None, kinds), None)
        changes = form(obj, saved["config"]) if form else None
        if changes:
            own = dict(saved)
            saved.update(changes)  # Keras may mark it as shared later
            saved[_KEY] = own
        return saved

    return serialize_keras_object


def _loading_ours(original: Callable[..., Any]) -> Any:
    def deserialize_keras_object(config: Any, *args: Any, **kw: Any) -> Any:
        if isinstance(config, dict) and isinstance(config.get(_KEY), dict):
            shared = {
                k: config[k] for k in ("shared_object_id",) if k in config
            }
            config = {**config[_KEY], **shared}
        return original(config, *args, **kw)

    return deserialize_keras_object


check_names()
