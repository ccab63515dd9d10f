"""Test how the program reads the stack's state through the engine."""

from types import SimpleNamespace

import pytest

from infra import stack_state

HALF = Exception("invoke of readStackResourceOutputs failed: failed to load checkpoint: EOF")
URN = "urn:pulumi:dev::paddle-training::aws:efs/fileSystem:FileSystem::files"
FOUND = SimpleNamespace(value={"outputs": {URN: {"outputs": {"id": "fs-1"}}}})


@pytest.fixture
def read(monkeypatch):
    """Return a function that reads the state from an engine with these answers; it returns outputs and pauses."""

    def run(*answers):
        left, pauses = list(answers), []

        def invoke(token, arguments):
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(stack_state.pulumi.runtime, "invoke", invoke)
        monkeypatch.setattr(stack_state.time, "sleep", pauses.append)
        outputs = stack_state.read_outputs("paddle-training", "dev")
        assert not left
        return outputs, pauses

    return run


def test_read_outputs_while_engine_writes_state_reads_again(read):
    outputs, pauses = read(HALF, HALF, FOUND)
    assert outputs == {"aws:efs/fileSystem:FileSystem::files": {"id": "fs-1"}}
    assert pauses == list(stack_state.PAUSES[:2])


def test_read_outputs_damaged_state_raises_after_last_pause(read):
    with pytest.raises(Exception, match="failed to load checkpoint"):
        read(*[HALF] * (len(stack_state.PAUSES) + 1))


def test_read_outputs_other_error_is_not_retried(read):
    with pytest.raises(Exception, match="access denied"):
        read(Exception("access denied"))
