"""The switches of a thread: read, put back whatever happens, compared."""

import pytest
import torch

from framesmith_guards.contexts import ambient


def change():
    torch._C._set_grad_enabled(not torch.is_grad_enabled())
    for device in ("cpu", "xpu"):
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, torch.float16)
    torch.set_autocast_cache_enabled(not torch.is_autocast_cache_enabled())
    torch.autocast_increment_nesting()


def test_all_is_put_back_after_an_error():
    before = ambient.read()
    with pytest.raises(KeyError), ambient.preserved() as state:
        assert state == before
        change()
        now = ambient.read()
        assert now != before and now.any_autocast and not before.any_autocast
        assert not ambient.without_autocast(now).any_autocast
        raise KeyError
    assert ambient.read() == before
