import pytest

from sp.errors import StrategyError
from sp.runtime.transport import TRANSPORTS, find_transport
from sp.strategy import STRATEGIES


def test_every_strategy_has_its_transport() -> None:
    assert {strategy.transport for strategy in STRATEGIES.values()} <= set(TRANSPORTS)
    assert all(find_transport(name).name == name for name in TRANSPORTS)


def test_unknown_transport() -> None:
    with pytest.raises(StrategyError, match=r"no transport 'rign'(.|\n)*one of: .*ring"):
        find_transport("rign")
