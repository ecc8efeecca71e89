"""Builds the contract's stores, secrets and schemes from `[stores]` and `[schemes]`."""

from __future__ import annotations

from receiver.config.errors import did_you_mean
from receiver.config.settings import FileSettings, SchemeSettings
from receiver.config.source_files import Place, Places
from receiver.contract.errors import ConfigError
from receiver.contract.signing.grammar import extend
from receiver.contract.signing.signatures import MAX_SECRETS, PRESETS, Scheme, SchemeError, Secret
from receiver.contract.stores import Store


def build_schemes(settings: FileSettings, places: Places) -> dict[str, Scheme]:
    """Every `[schemes.NAME]`, with what it inherits."""
    schemes = _Schemes(settings, places)
    return {name: schemes.build(name, places.nearest(("schemes", name))) for name in settings.schemes}


def build_stores(settings: FileSettings, places: Places) -> dict[str, Store]:
    """Every `[stores.NAME]`, with its scheme and its decoded signing secrets."""
    schemes = _Schemes(settings, places)
    return {name: _store(settings, places, schemes, name) for name in settings.stores}


def _store(settings: FileSettings, places: Places, schemes: _Schemes, name: str) -> Store:
    given = settings.stores[name]
    scheme = schemes.build(given.scheme, places.nearest(("stores", name, "scheme")))
    count = len(given.signing_secrets)
    if not count and not (settings.secrets.key.get_secret_value() and given.base_url):
        where = places.nearest(("stores", name))
        raise ConfigError(
            f"{where}: stores.{name} has no signing_secrets; without one every delivery is refused. They can be "
            "left out only where the store has a base_url and [secrets] key is set: then they are learned from its API"
        )
    if count > MAX_SECRETS:
        where = places.nearest(("stores", name, "signing_secrets"))
        raise ConfigError(f"{where}: stores.{name} has {count} signing_secrets; keep the newest {MAX_SECRETS}")
    secrets = tuple(_secret(settings, places, scheme, name, index) for index in range(count))
    return Store(
        name, scheme, secrets, url=settings.public_url_of(name), domain=given.domain, redact=settings.redact.paths
    )


def _secret(settings: FileSettings, places: Places, scheme: Scheme, store: str, index: int) -> Secret:
    given = settings.stores[store].signing_secrets[index]
    place = places.nearest(("stores", store, "signing_secrets", index))
    try:
        key = scheme.key_of(given.value.get_secret_value())
    except ValueError as error:
        raise ConfigError(
            f"{place}: stores.{store}.signing_secrets[{index}] cannot be used with {scheme.name}: {error}"
        ) from None
    return Secret(key=key, origin=str(place), not_after=given.not_after)


class _Schemes:
    """Builds schemes by name: a preset, or a configured scheme and those it extends."""

    def __init__(self, settings: FileSettings, places: Places) -> None:
        self._settings, self._places = settings, places

    def build(self, name: str, place: Place | None, extended_by: tuple[str, ...] = ()) -> Scheme:
        """Return the scheme of this name. `place` is where the name is used, for the error message."""
        if name in extended_by:
            raise ConfigError(f"{place}: schemes.{name} extends itself: {' -> '.join((*extended_by, name))}")
        given = self._settings.schemes.get(name)
        if given is None:
            if name in PRESETS:
                return PRESETS[name]
            hint = did_you_mean(name, [*PRESETS, *self._settings.schemes])
            raise ConfigError(f"{place}: there is no scheme {name}{hint}")
        return self._extend(name, given, self._parent(name, given, extended_by))

    def _parent(self, name: str, given: SchemeSettings, extended_by: tuple[str, ...]) -> Scheme | None:
        """The scheme that this one extends. One that replaces a preset may extend that preset."""
        if not given.extends:
            return None
        if given.extends == name and name in PRESETS:
            return PRESETS[name]
        place = self._places.nearest(("schemes", name, "extends"))
        return self.build(given.extends, place, (*extended_by, name))

    def _extend(self, name: str, given: SchemeSettings, parent: Scheme | None) -> Scheme:
        try:
            return extend(
                parent,
                name=name,
                changes=given.model_dump(exclude_none=True, exclude={"extends", "event", "topics", "record"}),
                event=given.event.model_dump(exclude_none=True),
                topics=given.topics,
                record=given.record.model_dump(exclude_none=True),
            )
        except SchemeError as error:
            place = self._places.nearest(("schemes", name, *error.key.split(".")))
            raise ConfigError(f"{place}: schemes.{name}: {error}") from None
