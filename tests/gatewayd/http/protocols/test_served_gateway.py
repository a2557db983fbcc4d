"""The gateway that protocol plugins get: each name has its model, within the key's rights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gatewayd.http.protocols.gateway import ServedGateway
from gatewayd.tenants.principal import OPERATOR, Principal, set_current_principal
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.protocols import RequestRefusal
from tests.gatewayd.fake_fleet import FakeFleet, model_info
from tests.gatewayd.one_model import another_target, one_model


@pytest.fixture
def gateway(text: TextModel) -> Iterator[ServedGateway]:
    """Models ``nano``, also named ``alias``; ``bare``, without a template; ``late``, not loaded."""
    services = one_model(FakeFleet(), text, names=("nano", "alias"))
    bare, late = FakeFleet(model=model_info(99)), FakeFleet()
    late.model, late.is_ready = None, False
    plain = TextModel(text.tokenizer, None)
    services.catalogue.add(another_target(services, bare, plain, ("bare",)))
    services.catalogue.add(another_target(services, late, text, ("late",)))
    yield ServedGateway(services)
    set_current_principal(OPERATOR)


def limit_to(*names: str) -> None:
    """Act as a key for some names."""
    scopes = frozenset(f"infer:{name}" for name in names)
    set_current_principal(Principal(tenant="a", scopes=scopes, key_id="k"))


def test_each_name_has_its_own_model(gateway: ServedGateway) -> None:
    found = {name: gateway.describe(name) for name in gateway.models}
    lengths = {name: one and one.context_length for name, one in found.items()}
    assert lengths == {"nano": 2048, "alias": 2048, "bare": 99, "late": None}
    templates = {name: bool(gateway.text_of(name).chat_template) for name in gateway.models}
    assert templates == {"nano": True, "alias": True, "bare": False, "late": True}
    assert [name for name in gateway.models if gateway.is_loaded(name)] == ["nano", "alias", "bare"]
    assert gateway.model == found["nano"]


async def test_a_key_for_some_models_finds_those_alone(gateway: ServedGateway) -> None:
    limit_to("bare", "late")
    assert list(gateway.models) == ["bare", "late"]
    assert gateway.model is not None
    assert gateway.model.context_length == 99
    for name, status in (("nano", 403), ("missing", 404)):
        for call in (gateway.describe, gateway.text_of, gateway.is_loaded):
            with pytest.raises(RequestRefusal) as caught:
                call(name)
            assert caught.value.status == status
        with pytest.raises(RequestRefusal) as caught:
            await gateway.load(name)
        assert caught.value.status == status
    limit_to("elsewhere")
    assert gateway.model is None
