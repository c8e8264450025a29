"""Metrics in the files of other programs: TensorBoard's events, byte by byte, and the table that trackio imports."""
import csv
import struct

import pytest

import gomlx
from gomlx import lora
from gomlx._training import boards

ROWS = [{"prompt": f"Number {i}?", "chosen": f"The number {i}.", "rejected": "No."} for i in range(6)]
NAMES = ["epoch", "loss", "rows", "tokens", "targets", "learning_rate", "gradient_norm", "seconds", "peak_memory_bytes"]
OF_DPO = ["accuracy", "chosen_reward", "margin", "rejected_reward"]


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def crc32c(data):
    """Bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """(number, value) of a protocol buffer."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
            yield key >> 3, data[at:at + size]
            at += size


def events(path):
    """[(time, step, version or {name: value})] of a file."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        size, check = struct.unpack("<QI", data[at:at + 12])
        body = data[at + 12:at + 12 + size]
        assert check == masked(data[at:at + 8])
        assert struct.unpack("<I", data[at + 12 + size:at + 16 + size])[0] == masked(body)
        at += 16 + size
        known = dict(fields(body))
        content = known[3].decode() if 3 in known else {
            dict(fields(value))[1].decode(): struct.unpack("<f", dict(fields(value))[2])[0]
            for _, value in fields(known[5])}
        found.append((struct.unpack("<d", known[1])[0], known[2], content))
    return found


def test_checksums_are_those_of_crc_32c():
    assert crc32c(b"123456789") == 0xE3069283
    for data in (b"", b"\0" * 32, b"123456789", bytes(range(256)) * 3):
        assert boards.masked_crc(data) == masked(data)


def test_events_and_a_table_of_a_run_that_was_stopped(model, tmp_path):
    options = {"loss": "dpo", "eval_data": ROWS[:2], "eval_every": 2, "progress": False}
    run = gomlx.train(model, ROWS, steps=5, batch=2, lora=lora.LoRAConfig(rank=2, layers=1), run=tmp_path / "run",
                      logs=["tensorboard", "trackio"], **options)
    next(run)
    next(run)
    next(run)
    run.stop()
    file, table = tmp_path / "run" / boards.EVENTS, tmp_path / "run" / boards.TABLE
    first = events(file)
    file.write_bytes(file.read_bytes()[:-7])                # as a kill in the middle may leave it
    table.write_bytes(table.read_bytes()[:-7])
    again = gomlx.train(model, ROWS, resume=tmp_path / "run", eval_data=ROWS[:2], progress=False).finish()
    found = events(file)
    assert found[:4] == first and [step for _, step, _ in found] == [0, 1, 2, 3, 4, 5]
    assert found[0][2] == "brain.Event:2" and [time for time, _, _ in found] == sorted(time for time, _, _ in found)
    for step, (_, number, values) in zip(again.history, found[1:]):
        assert list(values)[:9] == NAMES and set(values) - set(NAMES) - {"eval_loss"} == set(OF_DPO)
        assert values["loss"] == pytest.approx(step.loss) and values["margin"] == pytest.approx(step.metrics["margin"])
        assert ("eval_loss" in values) == (number in (2, 4, 5))
    with open(table, newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["step", *NAMES, "eval_loss", *OF_DPO]
    assert [float(row["loss"]) for row in rows] == again.losses and [row["step"] for row in rows] == list("12345")
    assert rows[0]["eval_loss"] == "" and float(rows[1]["eval_loss"]) == again.history[1].eval_loss


def test_what_may_be_asked_for(model, tmp_path):
    with pytest.raises(ValueError, match="logs is 'wandb', expected one of tensorboard, trackio"):
        gomlx.train(model, ROWS, loss="dpo", run=tmp_path / "run", logs=["wandb"])
    with pytest.raises(ValueError, match="logs: need run="):
        gomlx.train(model, ROWS, loss="dpo", logs=["trackio"])
    with pytest.raises(TypeError, match="logs: expected names"):
        gomlx.train(model, ROWS, loss="dpo", run=tmp_path / "run", logs="trackio")
    run = gomlx.train(model, ROWS, loss="dpo", steps=1, run=tmp_path / "run", progress=False).finish()
    assert not (tmp_path / "run" / "trackio.csv").exists()
    gomlx.train(model, ROWS, resume=run.folder, steps=2, logs=["trackio"], progress=False).finish()
    assert (tmp_path / "run" / "trackio.csv").read_text().count("\n") == 3
